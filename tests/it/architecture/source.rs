//! Our crates as syntax trees: the modules of each, with the files that they are in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, ItemMod};

use super::metadata;

/// A library or program of ours without its tests.
pub(super) struct Source {
    /// The package, and the name of the target if it is another.
    pub(super) name: String,
    /// The root module.
    pub(super) root: Module,
}

/// A module.
pub(super) struct Module {
    /// The file that it is in.
    pub(super) file: PathBuf,
    /// Its items, without modules and without items that are compiled only for tests.
    pub(super) items: Vec<Item>,
    pub(super) modules: BTreeMap<String, Self>,
}

/// The libraries and programs of the workspace.
pub(super) fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for package in metadata().ours() {
        let dir = package.manifest.parent().expect("a manifest lies in a directory");
        for target in ["src/lib.rs", "src/main.rs", "it/main.rs", "guest/main.rs", "benches/cri/main.rs"] {
            let path = dir.join(target);
            if path.exists() {
                let name = if target == "src/lib.rs" {
                    package.name.clone()
                } else {
                    format!("{} {target}", package.name)
                };
                sources.push(Source { name, root: Module::read(&path, &[]) });
            }
        }
    }
    assert!(sources.len() > 20, "these are too few crates: {}", sources.len());
    sources
}

/// Whether something is compiled for tests alone.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.parse_args().is_ok_and(|path: syn::Path| path.is_ident("test")))
    })
}

/// The file of a module, as its attribute `path` gives it: relative to the file that declares it.
fn placed_at(attributes: &[Attribute]) -> Option<String> {
    let mut values = attributes.iter().filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => Some(&pair.value),
        syn::Meta::NameValue(_) | syn::Meta::Path(_) | syn::Meta::List(_) => None,
    });
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = values.next()? else {
        panic!("the path of a module is no text");
    };
    Some(text.value())
}

// === impl Module ===

impl Module {
    /// Reads the file of a module that is found by this path from the root of its crate.
    fn read(file: &Path, path: &[String]) -> Self {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        // Submodules of `lib.rs` and `main.rs` are beside them, those of `a.rs` are in `a/`.
        let below = if path.is_empty() {
            file.parent().expect("a file lies in a directory").to_owned()
        } else {
            file.with_extension("")
        };
        Self::of(file, &below, path, parsed.items)
    }

    fn of(file: &Path, below: &Path, path: &[String], all: Vec<Item>) -> Self {
        let mut items = Vec::new();
        let mut modules = BTreeMap::new();
        for item in all {
            match item {
                Item::Mod(module) if is_for_tests(&module.attrs) => {}
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    modules.insert(name, Self::child(file, below, path, module));
                }
                item if is_for_tests(attributes(&item)) => {}
                item => items.push(item),
            }
        }
        Self { file: file.to_owned(), items, modules }
    }

    fn child(file: &Path, below: &Path, path: &[String], module: ItemMod) -> Self {
        let name = module.ident.to_string();
        let mut path = path.to_vec();
        path.push(name.clone());
        match module.content {
            Some((_, items)) => Self::of(file, &below.join(&name), &path, items),
            None => match placed_at(&module.attrs) {
                Some(other) => Self::read(&file.with_file_name(other), &path),
                None => Self::read(&below.join(format!("{name}.rs")), &path),
            },
        }
    }

    /// The module that is found by this path from here.
    pub(super) fn at(&self, path: &[String]) -> Option<&Self> {
        match path {
            [] => Some(self),
            [first, rest @ ..] => self.modules.get(first)?.at(rest),
        }
    }

    /// This module and all below it, each with its path from here.
    pub(super) fn all(&self) -> Vec<(Vec<String>, &Self)> {
        let mut all = vec![(Vec::new(), self)];
        for (name, module) in &self.modules {
            all.extend(module.all().into_iter().map(|(mut path, module)| {
                path.insert(0, name.clone());
                (path, module)
            }));
        }
        all
    }
}

/// The attributes of an item; none for what has none.
fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
