//! The modules of a crate, read from its sources, and the names in each: enough to find the file that defines
//! a path. Code for tests is left out.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

/// The longest chain of re-exports that is followed.
const DEEPEST: usize = 16;

/// The index of a module in [`Crate::modules`].
pub(super) type ModuleId = usize;
/// The index of a file in [`Crate::files`].
pub(super) type FileId = usize;

/// A crate: its files and the tree of its modules, whose root is module 0.
pub(super) struct Crate {
    pub files: Vec<PathBuf>,
    pub modules: Vec<Module>,
}

/// A module: a file, or a block `mod name { }` in a file.
pub(super) struct Module {
    pub file: FileId,
    name: String,
    parent: Option<ModuleId>,
    children: BTreeMap<String, ModuleId>,
    /// Names that the module defines itself.
    names: BTreeSet<String>,
    /// Names that the module imports, with the imported paths.
    imports: BTreeMap<String, Vec<Vec<String>>>,
    /// Paths from which the module imports every name (`use path::*`).
    globs: Vec<Vec<String>>,
    /// The items of the module, without those for tests.
    pub items: Vec<Item>,
}

/// The meaning of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Module(ModuleId),
    /// A function, a type, a constant or a macro that this file defines.
    Item(FileId),
}

/// One name of a `use` declaration.
pub(super) struct Import {
    pub path: Vec<String>,
    /// The name in the importing module; `None` if all names of the path are imported.
    pub name: Option<String>,
}

impl Crate {
    /// Reads the crate whose root, `lib.rs` or `main.rs`, is in a directory.
    pub(super) fn read(source: &Path) -> Result<Self> {
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|path| path.exists());
        let Some(root) = root else { bail!("{} has no lib.rs or main.rs", source.display()) };
        let mut this = Self { files: Vec::new(), modules: Vec::new() };
        this.read_file("crate", &root, source, None)?;
        Ok(this)
    }

    /// Reads the file of a module, whose children are in the directory `children`.
    fn read_file(
        &mut self,
        name: &str,
        path: &Path,
        children: &Path,
        parent: Option<ModuleId>,
    ) -> Result<ModuleId> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        self.files.push(path.into());
        self.add_module(name, self.files.len() - 1, parsed.items, children, parent)
    }

    fn add_module(
        &mut self,
        name: &str,
        file: FileId,
        mut items: Vec<Item>,
        children: &Path,
        parent: Option<ModuleId>,
    ) -> Result<ModuleId> {
        items.retain(|item| !is_for_tests(attributes(item)));
        let this = self.modules.len();
        self.modules.push(Module {
            file,
            name: name.into(),
            parent,
            children: BTreeMap::new(),
            names: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            items: Vec::new(),
        });
        for item in &mut items {
            if let Item::Mod(module) = item {
                let name = module.ident.to_string();
                let below = children.join(&name);
                let child = match module.content.take() {
                    Some((_, items)) => Some(self.add_module(&name, file, items, &below, Some(this))?),
                    None if name == "tests" => None,
                    None => {
                        let path = file_of(children, &name, &module.attrs);
                        Some(self.read_file(&name, &path, &below, Some(this))?)
                    }
                };
                self.modules[this].children.extend(child.map(|child| (name, child)));
            }
            self.define(this, item);
        }
        self.modules[this].items = items;
        Ok(this)
    }

    /// Enters the names of an item into its module. An exported macro is a name of the root.
    fn define(&mut self, module: ModuleId, item: &Item) {
        let name = match item {
            Item::Const(item) => item.ident.to_string(),
            Item::Enum(item) => item.ident.to_string(),
            Item::Fn(item) => item.sig.ident.to_string(),
            Item::Static(item) => item.ident.to_string(),
            Item::Struct(item) => item.ident.to_string(),
            Item::Trait(item) => item.ident.to_string(),
            Item::TraitAlias(item) => item.ident.to_string(),
            Item::Type(item) => item.ident.to_string(),
            Item::Union(item) => item.ident.to_string(),
            Item::Macro(item) => {
                let Some(name) = &item.ident else { return };
                if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                    let path = self.path_of(module, &name.to_string());
                    self.modules[0].imports.entry(name.to_string()).or_default().push(path);
                }
                name.to_string()
            }
            Item::Use(item) => return self.modules[module].import(item),
            _ => return,
        };
        self.modules[module].names.insert(name);
    }

    /// Returns the path, from the root, of a name in a module.
    fn path_of(&self, module: ModuleId, name: &str) -> Vec<String> {
        let mut path = vec![name.to_owned()];
        let mut at = &self.modules[module];
        while let Some(parent) = at.parent {
            path.push(at.name.clone());
            at = &self.modules[parent];
        }
        path.push("crate".into());
        path.reverse();
        path
    }

    /// Enters the imports of a declaration inside of a function.
    pub(super) fn import(&mut self, module: ModuleId, item: &ItemUse) {
        self.modules[module].import(item);
    }

    /// Returns the meaning of a path that stands in a module; `None` if the path begins outside of the crate.
    pub(super) fn resolve(&self, module: ModuleId, path: &[String]) -> Option<Target> {
        self.resolve_within(module, path, DEEPEST)
    }

    fn resolve_within(&self, module: ModuleId, path: &[String], depth: usize) -> Option<Target> {
        let depth = depth.checked_sub(1)?;
        let mut at = module;
        for (index, name) in path.iter().enumerate() {
            let is_last = index + 1 == path.len();
            match name.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.modules[at].parent?,
                name => match self.look_up(at, name, is_last, depth) {
                    Some(Target::Module(child)) => at = child,
                    Some(item) => return Some(item),
                    // The path begins with a crate, a name of the language, or a variable.
                    None if index == 0 => return None,
                    // A macro makes the name, or the module re-exports another crate's.
                    None => return Some(Target::Item(self.modules[at].file)),
                },
            }
        }
        Some(Target::Module(at))
    }

    /// Returns the meaning of a name in a module. A module and an item may have the same name: the item is
    /// meant at the end of a path.
    fn look_up(&self, at: ModuleId, name: &str, is_last: bool, depth: usize) -> Option<Target> {
        let module = &self.modules[at];
        let own = module.names.contains(name).then_some(Target::Item(module.file));
        let child = module.children.get(name).copied().map(Target::Module);
        let found = if is_last { own.or(child) } else { child.or(own) };
        let imported = || {
            let paths = module.imports.get(name)?;
            // The path itself can begin with the name that it imports: `use log;`.
            let outside = |path: &&Vec<String>| path.first().is_none_or(|first| first != name);
            paths.iter().filter(outside).find_map(|path| self.resolve_within(at, path, depth))
        };
        let by_glob = || {
            module.globs.iter().find_map(|path| match self.resolve_within(at, path, depth)? {
                Target::Module(from) if from != at => {
                    self.look_up(from, name, is_last, depth.checked_sub(1)?)
                }
                _ => None,
            })
        };
        found.or_else(imported).or_else(by_glob)
    }
}

impl Module {
    fn import(&mut self, item: &ItemUse) {
        for Import { path, name } in imports(item) {
            match name {
                Some(name) => self.imports.entry(name).or_default().push(path),
                None => self.globs.push(path),
            }
        }
    }
}

/// Returns the names that a `use` declaration imports.
pub(super) fn imports(item: &ItemUse) -> Vec<Import> {
    fn walk(tree: &UseTree, path: &[String], found: &mut Vec<Import>) {
        let with = |name: &syn::Ident| [path, &[name.to_string()]].concat();
        let mut add = |ident: &syn::Ident, name: &syn::Ident| {
            let path = if ident == "self" { path.to_vec() } else { with(ident) };
            let name = if name == "self" { path.last().cloned() } else { Some(name.to_string()) };
            found.push(Import { path, name });
        };
        match tree {
            UseTree::Path(tree) => walk(&tree.tree, &with(&tree.ident), found),
            UseTree::Name(tree) => add(&tree.ident, &tree.ident),
            UseTree::Rename(tree) => add(&tree.ident, &tree.rename),
            UseTree::Glob(_) => found.push(Import { path: path.to_vec(), name: None }),
            UseTree::Group(tree) => tree.items.iter().for_each(|tree| walk(tree, path, found)),
        }
    }
    let mut found = Vec::new();
    // A leading `::` names another crate.
    if item.leading_colon.is_none() {
        walk(&item.tree, &[], &mut found);
    }
    found
}

/// Returns whether a declaration makes names visible outside of its module.
pub(super) fn is_re_export(item: &ItemUse) -> bool {
    !matches!(item.vis, Visibility::Inherited)
}

/// Returns the file of a module that its parent declares without a body.
fn file_of(children: &Path, name: &str, attributes: &[Attribute]) -> PathBuf {
    for attribute in attributes {
        if let syn::Meta::NameValue(meta) = &attribute.meta
            && meta.path.is_ident("path")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &meta.value
        {
            return children.join(path.value());
        }
    }
    let file = children.join(format!("{name}.rs"));
    if file.exists() { file } else { children.join(name).join("mod.rs") }
}

/// Returns whether an item exists in tests only: `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    fn wants_test(meta: &syn::Meta) -> bool {
        match meta {
            syn::Meta::Path(path) => path.is_ident("test"),
            syn::Meta::List(list) if list.path.is_ident("all") => nested(list).iter().any(wants_test),
            _ => false,
        }
    }
    fn nested(list: &syn::MetaList) -> Vec<syn::Meta> {
        let parser = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        list.parse_args_with(parser).map(|metas| metas.into_iter().collect()).unwrap_or_default()
    }
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => nested(list).iter().any(wants_test),
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
