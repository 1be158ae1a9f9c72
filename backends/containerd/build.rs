//! Compiles the infra process, which is put into the binary.

#[path = "../compile.rs"]
mod compile;

fn main() {
    println!("cargo::rerun-if-changed=infra/pause.c");
    compile::compile("pause", &["infra/pause.c"]);
}
