//! The inventory against the members.

use super::{Context, node_path, state};
use maud::{Markup, html};
use proto::{InventoryNode, Presence};

/// Returns the nodes that are not as the inventory lists them; nothing if the manager has no inventory.
pub(super) fn table(context: &Context<'_>) -> Markup {
    let view = &context.snapshot.view;
    html! {
        @if let Some(inventory) = &view.inventory {
            section id="inventory" data-live="" aria-labelledby="inventory-title" {
                h2 id="inventory-title" { "Inventory" }
                p.sub { (inventory.present) " of " (inventory.listed) " listed nodes are members, as listed" }
                @if !inventory.others.is_empty() { (others(&inventory.others)) }
            }
        }
    }
}

fn others(nodes: &[InventoryNode]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Nodes that are not as listed" {
            table {
                thead { tr {
                    th scope="col" { "Node" }
                    th scope="col" { "Inventory" }
                    th scope="col" { "Difference" }
                } }
                tbody {
                    @for node in nodes {
                        tr {
                            // An absent node may have no page.
                            th scope="row" {
                                @if node.presence == Presence::Absent { (node.name) }
                                @else { a href=(node_path(&node.name)) { (node.name) } }
                            }
                            td { (state(node.presence.word())) }
                            td { (difference(&node.presence)) }
                        }
                    }
                }
            }
        }
    }
}

fn difference(presence: &Presence) -> String {
    match presence {
        Presence::Present => String::new(),
        Presence::Differs(differences) => differences.join("; "),
        Presence::Absent => "the inventory lists it, and it is no member".into(),
        Presence::Unlisted => "it is a member, and the inventory does not list it".into(),
    }
}
