//! The imports between the files of a crate.
//!
//! A file imports another if it names an item that the other defines, in a `use` or in a path, also within a
//! macro. Where a path goes through a re-export, the file with the definition counts. Declarations of
//! modules, calls of methods, and tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use crate::{Module, is_for_tests};

/// Maximum length of a chain of re-exports.
const REEXPORTS: usize = 8;

/// Returns the imports of each file, within the crate of this root module.
#[must_use]
pub fn imports(root: &Module) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let mut imports: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, module) in root.all() {
        let mut named = Named::default();
        for item in &module.items {
            named.visit_item(item);
        }
        for used in named.paths {
            if let Some(file) = defined(root, &path, &used, REEXPORTS)
                && file != module.file
            {
                imports.entry(module.file.clone()).or_default().insert(file);
            }
        }
    }
    imports
}

/// The file that defines what a path stands for in a module; `None` for what is of another crate, and for
/// modules.
fn defined(root: &Module, here: &[String], path: &[String], reexports: usize) -> Option<PathBuf> {
    let (first, mut rest) = path.split_first()?;
    let mut at: Vec<String> = here.to_vec();
    match first.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => drop(at.pop()),
        _ => rest = path,
    }
    while let Some((name, below)) = rest.split_first() {
        let module = root.at(&at)?;
        if name == "super" {
            at.pop();
        } else if module.modules.contains_key(name) {
            at.push(name.clone());
        } else if module.items.iter().any(|item| defines(item, name)) {
            return Some(module.file.clone());
        } else {
            let reexports = reexports.checked_sub(1)?;
            return imported(module)
                .into_iter()
                .find_map(|(known, mut target)| {
                    // A glob may be anything.
                    if known == *name {
                        target.extend_from_slice(below);
                    } else if known == "*" {
                        target.extend_from_slice(rest);
                    } else {
                        return None;
                    }
                    // What an import calls by the name of the import is of another crate.
                    (target != rest).then(|| defined(root, &at, &target, reexports))?
                });
        }
        rest = below;
    }
    None
}

/// Returns whether an item is the definition of this name.
fn defines(item: &Item, name: &str) -> bool {
    match item {
        Item::Const(item) => item.ident == name,
        Item::Enum(item) => item.ident == name,
        Item::Fn(item) => item.sig.ident == name,
        Item::Macro(item) => item.ident.as_ref().is_some_and(|ident| ident == name),
        Item::Static(item) => item.ident == name,
        Item::Struct(item) => item.ident == name,
        Item::Trait(item) => item.ident == name,
        Item::Type(item) => item.ident == name,
        _ => false,
    }
}

/// Returns the imports of a module: each name there, and the path that it stands for.
fn imported(module: &Module) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for item in &module.items {
        if let Item::Use(item) = item {
            flatten(&item.tree, &[], &mut found);
        }
    }
    found
}

fn flatten(tree: &UseTree, before: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let with = |name: String| [before, &[name]].concat();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &with(path.ident.to_string()), found),
        UseTree::Name(name) if name.ident == "self" => {
            found.push((before.last().cloned().unwrap_or_default(), before.to_vec()));
        }
        UseTree::Name(name) => found.push((name.ident.to_string(), with(name.ident.to_string()))),
        UseTree::Rename(renamed) if renamed.ident == "self" => {
            found.push((renamed.rename.to_string(), before.to_vec()));
        }
        UseTree::Rename(renamed) => {
            found.push((renamed.rename.to_string(), with(renamed.ident.to_string())))
        }
        UseTree::Glob(_) => found.push(("*".to_owned(), before.to_vec())),
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| flatten(tree, before, found)),
    }
}

/// The paths of more than one name that stand in some code, and those of its imports.
#[derive(Default)]
struct Named {
    paths: BTreeSet<Vec<String>>,
}

impl Named {
    /// The paths in the input of a macro, as far as they are recognisable without knowing the macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 => {
                    path.push(ident.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(punct)
                    if punct.as_char() == ':' && !path.is_empty() && colons < 2 =>
                {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    self.end(&mut path);
                    path.push(ident.to_string());
                }
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.end(&mut path),
            }
            colons = 0;
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.paths.insert(path.clone());
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Named {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            self.paths.insert(
                path.segments
                    .iter()
                    .map(|segment| segment.ident.to_string())
                    .collect(),
            );
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut imports = Vec::new();
        flatten(&item.tree, &[], &mut imports);
        self.paths.extend(imports.into_iter().map(|(_, path)| path));
    }

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        self.tokens(found.tokens.clone());
        visit::visit_macro(self, found);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

#[cfg(test)]
mod tests;
