//! Rules for readable code: no name for two types, and no two statements packed into one.

use std::collections::BTreeMap;

use switchyard_source::is_for_tests;
use syn::visit::{self, Visit};
use syn::{Expr, Item, Local, Pat};

use super::repository;
use super::source::sources;

/// Types that are compiled in one of two ways: crate and name.
const TWO_WAYS: [(&str, &str); 1] = [("switchyard-crash-points", "Faults")];

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
                let file = module
                    .file
                    .strip_prefix(repository())
                    .unwrap_or(&module.file);
                files
                    .entry(name.to_string())
                    .or_default()
                    .push(file.display().to_string());
            }
        }
        let twice = files.into_iter().filter(|(name, files)| {
            files.len() > 1 && !TWO_WAYS.contains(&(source.name.as_str(), name.as_str()))
        });
        wrong.extend(
            twice.map(|(name, files)| format!("{}: {name} in {}", source.name, files.join(", "))),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_statement_binds_several_unrelated_values() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (_, module) in source.root.all() {
            let mut lets = Lets::default();
            for item in &module.items {
                lets.visit_item(item);
            }
            let file = module
                .file
                .strip_prefix(repository())
                .unwrap_or(&module.file);
            wrong.extend(
                lets.0
                    .into_iter()
                    .map(|names| format!("{}: let {names}", file.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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

#[test]
fn packed_statement_check_finds_only_destructured_tuples() {
    let code = "fn f(pair: (u8, u8)) { let (a, mut b) = (1, 2); let (c, d) = pair; let (Some(e), 3) = (a, b) else { return }; }";
    let mut lets = Lets::default();
    lets.visit_file(&syn::parse_file(code).expect("the code of this test is Rust"));
    assert_eq!(lets.0, ["(a, b)"]);
}
