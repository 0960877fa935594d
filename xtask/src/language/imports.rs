//! The imports between the files of a crate: an edge for each file that names something of another file.

use super::modules::{Crate, FileId, ModuleId, Target, imports, is_for_tests, is_re_export};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;
use syn::visit::{self, Visit};

/// The edges of the graph of imports, each with an example: the path that is imported.
pub(super) type Edges = BTreeMap<(FileId, FileId), String>;

/// Returns the imports between the files of a crate.
///
/// A name counts for the file that defines it, also if another file re-exports it. The import of a module
/// makes no edge; the paths that begin with the module do.
pub(super) fn edges(tree: &mut Crate) -> Edges {
    let mut edges = Edges::new();
    for module in 0..tree.modules.len() {
        let items = std::mem::take(&mut tree.modules[module].items);
        let mut local = LocalImports(Vec::new());
        items.iter().for_each(|item| local.visit_item(item));
        local.0.iter().for_each(|item| tree.import(module, item));
        let mut finder = Finder { tree, module, edges: &mut edges };
        items.iter().for_each(|item| finder.visit_item(item));
        tree.modules[module].items = items;
    }
    edges
}

/// The `use` declarations in functions, which are taken for the module's.
struct LocalImports(Vec<syn::ItemUse>);

impl<'a> Visit<'a> for LocalImports {
    fn visit_block(&mut self, block: &'a syn::Block) {
        for statement in &block.stmts {
            if let syn::Stmt::Item(syn::Item::Use(item)) = statement {
                self.0.push(item.clone());
            }
        }
        visit::visit_block(self, block);
    }
}

struct Finder<'a> {
    tree: &'a Crate,
    module: ModuleId,
    edges: &'a mut Edges,
}

impl Finder<'_> {
    fn add(&mut self, path: &[String], is_glob: bool) {
        let own = self.tree.modules[self.module].file;
        let file = match self.tree.resolve(self.module, path) {
            Some(Target::Item(file)) => file,
            Some(Target::Module(module)) if is_glob => self.tree.modules[module].file,
            _ => return,
        };
        if file != own {
            let example = path.join("::") + if is_glob { "::*" } else { "" };
            self.edges.entry((own, file)).or_insert(example);
        }
    }

    /// Adds the paths in the arguments of a macro, which have no other form than tokens.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // The number of colons since the last name of the path.
        let mut colons = 0;
        let mut is_member = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    if !is_member {
                        path.push(name.to_string());
                    }
                    (colons, is_member) = (0, false);
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.add_tokens(group.stream());
                    (colons, is_member) = (0, false);
                }
                TokenTree::Punct(mark) => {
                    self.end_path(&mut path);
                    (colons, is_member) = (0, mark.as_char() == '.');
                }
                TokenTree::Literal(_) => {
                    self.end_path(&mut path);
                    (colons, is_member) = (0, false);
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        if !path.is_empty() {
            self.add(path, false);
        }
        path.clear();
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        if is_for_tests(&item.attrs) || is_re_export(item) {
            return;
        }
        for import in imports(item) {
            self.add(&import.path, import.name.is_none());
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&names, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }

    // The paths in the body of a macro belong to the places that call it.
    fn visit_item_macro(&mut self, item: &'a syn::ItemMacro) {
        if item.ident.is_none() {
            visit::visit_item_macro(self, item);
        }
    }

    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}

    // The module of a block is visited by itself.
    fn visit_item_mod(&mut self, _: &'a syn::ItemMod) {}

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'a syn::FieldValue) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }
}
