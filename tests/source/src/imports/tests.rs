//! Tests of imports, and of the circles that they make.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::imports;
use crate::{Module, circles};

#[test]
fn cycle_is_found_through_imports_macros_and_re_exports() {
    let module = |file: &str, code: &str| Module {
        file: PathBuf::from(file),
        items: syn::parse_file(code)
            .expect("the code of this test is Rust")
            .items,
        modules: BTreeMap::new(),
        absent: Vec::new(),
    };
    let mut root = module("lib.rs", "pub use c::Three;");
    for (name, code) in [
        ("a", "use crate::b::Two; pub struct One;"),
        (
            "b",
            "pub struct Two; fn show() { println!(\"{}\", crate::Three::NAME) }",
        ),
        ("c", "pub struct Three; fn take(one: &super::a::One) {}"),
        (
            "d",
            "use crate::a::One; use std::fmt::Debug; pub struct Four;",
        ),
    ] {
        root.modules
            .insert(name.to_owned(), module(&format!("{name}.rs"), code));
    }
    let circle = circles(&imports(&root)).remove(0);
    assert_eq!(circle, ["a.rs", "b.rs", "c.rs"].map(PathBuf::from));
}
