//! Rules for readable code: no name for two types, and no two statements packed into one.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Expr, Item, Local, Pat};

use super::repository;
use super::source::{is_for_tests, sources};

/// Crates in which two types have the same name, and how many such names there are. Only smaller numbers and
/// fewer lines are right.
const NAMED_TWICE: [(&str, usize); 1] = [
    // `Faults` is compiled in one of two ways.
    ("switchyard-steps", 1),
];

/// Crates with `let (a, b) = (x, y)`, and how many there are. Only smaller numbers and fewer lines are right.
const PACKED: [(&str, usize); 0] = [];

#[test]
fn no_type_name_occurs_twice_in_a_crate() {
    let mut wrong = Vec::new();
    for source in sources() {
        let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, module) in source.root.all() {
            for item in &module.items {
                let name = match item {
                    Item::Enum(item) => &item.ident,
                    Item::Struct(item) => &item.ident,
                    Item::Trait(item) => &item.ident,
                    Item::Type(item) => &item.ident,
                    Item::Union(item) => &item.ident,
                    _ => continue,
                };
                let file = module.file.strip_prefix(repository()).unwrap_or(&module.file);
                files.entry(name.to_string()).or_default().push(file.display().to_string());
            }
        }
        let twice: Vec<String> = files
            .into_iter()
            .filter(|(_, files)| files.len() > 1)
            .map(|(name, files)| format!("{}: {name} in {}", source.name, files.join(", ")))
            .collect();
        check(&source.name, &twice, &NAMED_TWICE, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_statement_binds_several_unrelated_values() {
    let mut wrong = Vec::new();
    for source in sources() {
        let mut packed = Vec::new();
        for (_, module) in source.root.all() {
            let mut lets = Lets::default();
            for item in &module.items {
                lets.visit_item(item);
            }
            let file = module.file.strip_prefix(repository()).unwrap_or(&module.file);
            packed.extend(lets.0.into_iter().map(|names| format!("{}: let {names}", file.display())));
        }
        check(&source.name, &packed, &PACKED, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Compares with what is allowed: a crate that has become better must be listed so.
fn check(name: &str, found: &[String], allowed: &[(&str, usize)], wrong: &mut Vec<String>) {
    let most = allowed.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
    if found.len() != most {
        wrong.push(format!("{name}: {} are found, {most} are allowed", found.len()));
        wrong.extend(found.iter().map(|one| format!("    {one}")));
    }
}

/// The names that statements bind which take a tuple apart that they have just made.
#[derive(Default)]
struct Lets(Vec<String>);

impl<'ast> Visit<'ast> for Lets {
    fn visit_local(&mut self, local: &'ast Local) {
        if let Pat::Tuple(names) = &local.pat
            && let Some(init) = &local.init
            && init.diverge.is_none()
            && matches!(&*init.expr, Expr::Tuple(_))
        {
            let names: Vec<String> = names
                .elems
                .iter()
                .map(|pattern| match pattern {
                    Pat::Ident(name) => name.ident.to_string(),
                    _ => "_".to_owned(),
                })
                .collect();
            self.0.push(format!("({})", names.join(", ")));
        }
        visit::visit_local(self, local);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}
