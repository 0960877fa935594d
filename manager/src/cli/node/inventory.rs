//! `ferrolite node inventory`.

use super::super::args::ManagerArgs;
use super::super::report::columns;
use super::super::shown::{List, ListArgs};
use anyhow::Result;
use clap::Args;
use manager::core::json::inventory_json;
use proto::{InventoryNode, Presence, printable};

#[derive(Debug, Args)]
pub(in super::super) struct InventoryArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) fn inventory(args: &InventoryArgs) -> Result<()> {
    args.list.show(|| {
        let nodes = args.manager.connect()?.inventory()?;
        Ok(List { table: table(&nodes), json: inventory_json(&nodes) })
    })
}

fn table(nodes: &[InventoryNode]) -> String {
    let mut rows = vec![["name", "presence", "state", "bmc", "differences"].map(String::from).to_vec()];
    rows.extend(nodes.iter().map(|node| {
        let differences = match &node.presence {
            Presence::Differs(differences) => printable(&differences.join("; ")),
            _ => String::new(),
        };
        vec![
            printable(&node.name),
            node.presence.word().into(),
            node.standing.word().into(),
            node.bmc.as_deref().map_or_else(|| "-".into(), printable),
            differences,
        ]
    }));
    columns(&rows)
}
