//! Compiles the helper, which is put into the binary.

#[path = "../compile.rs"]
mod compile;

fn main() {
    println!("cargo::rerun-if-changed=helper");
    compile::compile("helper", &["helper/helper.c", "helper/projects.c"]);
}
