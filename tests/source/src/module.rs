//! The modules of a crate, each with the file that it is in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use syn::{Attribute, Item, ItemMod};

use crate::error::Error;

/// A module of a crate, without its tests.
pub struct Module {
    /// The file that it is in.
    pub file: PathBuf,
    /// Its items, without modules and without items that are compiled only for tests.
    pub items: Vec<Item>,
    /// The modules that it declares, by their names.
    pub modules: BTreeMap<String, Self>,
    /// The names of modules whose file is absent.
    pub absent: Vec<String>,
}

/// Returns whether something is compiled only for tests: it has `#[test]` or `#[cfg(test)]`.
#[must_use]
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .parse_args()
                    .is_ok_and(|path: syn::Path| path.is_ident("test")))
    })
}

/// Parses a file.
pub(crate) fn parse(path: &Path) -> Result<syn::File, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    syn::parse_file(&text).map_err(|source| Error::Parse {
        path: path.to_owned(),
        source,
    })
}

/// The files that a module without a body may be in, most likely first; `below` is the directory of the declaring module's submodules.
pub(crate) fn candidates(declared_in: &Path, below: &Path, module: &ItemMod) -> Vec<PathBuf> {
    let name = module.ident.to_string();
    match placed_at(&module.attrs) {
        Some(other) => vec![declared_in.with_file_name(other)],
        None => vec![
            below.join(format!("{name}.rs")),
            below.join(name).join("mod.rs"),
        ],
    }
}

/// The directory of the submodules of the module that is in this file, which is no crate's root.
pub(crate) fn submodules(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if file.file_name().is_some_and(|name| name == "mod.rs") => parent.to_owned(),
        _ => file.with_extension(""),
    }
}

/// The file of a module, as its attribute `path` gives it: relative to the file that declares it.
fn placed_at(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        })
}

// === impl Module ===

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("file", &self.file)
            .field("items", &self.items.len())
            .field("modules", &self.modules)
            .finish()
    }
}

impl Module {
    /// Reads a crate from its root file (`lib.rs`, `main.rs`), with all its modules.
    ///
    /// # Errors
    /// A file cannot be read or parsed.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let below = root.parent().unwrap_or(Path::new("")).to_owned();
        Self::of(root, &below, parse(root)?.items)
    }

    fn of(file: &Path, below: &Path, all: Vec<Item>) -> Result<Self, Error> {
        let mut items = Vec::new();
        let mut modules = BTreeMap::new();
        let mut absent = Vec::new();
        for item in all {
            match item {
                Item::Mod(module) if is_for_tests(&module.attrs) => {}
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    match Self::child(file, below, module)? {
                        Some(child) => {
                            modules.insert(name, child);
                        }
                        None => absent.push(name),
                    }
                }
                item if is_for_tests(attributes(&item)) => {}
                item => items.push(item),
            }
        }
        Ok(Self {
            file: file.to_owned(),
            items,
            modules,
            absent,
        })
    }

    fn child(file: &Path, below: &Path, module: ItemMod) -> Result<Option<Self>, Error> {
        let path = candidates(file, below, &module)
            .into_iter()
            .find(|path| path.exists());
        match (module.content, path) {
            (Some((_, items)), _) => {
                Self::of(file, &below.join(module.ident.to_string()), items).map(Some)
            }
            (None, Some(path)) => {
                Self::of(&path, &submodules(&path), parse(&path)?.items).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// The module that is found by this path from here.
    #[must_use]
    pub fn at(&self, path: &[String]) -> Option<&Self> {
        match path {
            [] => Some(self),
            [first, rest @ ..] => self.modules.get(first)?.at(rest),
        }
    }

    /// This module and all below it, each with its path from here.
    #[must_use]
    pub fn all(&self) -> Vec<(Vec<String>, &Self)> {
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
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
