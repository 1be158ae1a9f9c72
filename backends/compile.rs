//! Compiles a C program that goes into the binary, for build scripts: static, since it runs where there are no libraries, and hardened.
//!
//! What the compiler has made of the flags is checked: by `hardened.h`, which is put before each source, and by a look at the program.

#[path = "compiler.rs"]
mod compiler;

use std::path::PathBuf;
use std::process::Command;

/// Flags by which our C programs are compiled and linked.
const FLAGS: [&str; 13] = [
    "-static-pie",
    "-fPIE",
    "-Os",
    "-s",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fstack-protector-strong",
    // Some compilers come with a value of their own.
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-include",
    "../hardened.h",
];

/// Compiles `sources` into the file `name` of the build's directory.
///
/// # Panics
/// When they do not compile, or not into what they should be.
pub(crate) fn compile(name: &str, sources: &[&str]) {
    println!("cargo::rerun-if-changed=../compile.rs");
    println!("cargo::rerun-if-changed=../hardened.h");
    println!("cargo::rerun-if-changed=../compiler.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    let compiler = compiler::compiler();
    let status = Command::new(&compiler)
        .args(FLAGS)
        .arg("-o")
        .arg(&out)
        .args(sources)
        .status()
        .unwrap_or_else(|fault| {
            panic!(
                "cannot run {}: {fault}: install gcc and libc6-dev",
                compiler.display()
            )
        });
    assert!(
        status.success(),
        "{sources:?} do not compile: install gcc and libc6-dev (for libc.a and rcrt1.o)"
    );
    let program = std::fs::read(&out).expect("it was just made");
    if let Some(lack) = lack(&program) {
        panic!("{} has made {} {lack}", compiler.display(), out.display());
    }
}

/// Returns the first property that an ELF program lacks of those it is linked for.
fn lack(program: &[u8]) -> Option<&'static str> {
    const DYN: u64 = 3;
    const GNU_STACK: u64 = 0x6474_e551;
    const GNU_RELRO: u64 = 0x6474_e552;
    const DYNAMIC: u64 = 2;
    const FLAGS: u64 = 30;
    const BIND_NOW: u64 = 8;
    const EXECUTE: u64 = 1;
    // All that we build for is 64 bits wide.
    let number = |at: u64, length: usize| -> u64 {
        let at = usize::try_from(at).expect("a program fits into memory");
        let bytes = program.get(at..at + length).expect("the program is whole");
        let mut wide = [0; 8];
        if cfg!(target_endian = "little") {
            wide[..length].copy_from_slice(bytes);
        } else {
            wide[8 - length..].copy_from_slice(bytes);
        }
        u64::from_ne_bytes(wide)
    };
    let headers = (0..number(56, 2)).map(|index| number(32, 8) + index * number(54, 2));
    let find = |kind: u64| headers.clone().find(|header| number(*header, 4) == kind);
    if number(16, 2) != DYN {
        return Some("that is not position-independent");
    }
    if find(GNU_RELRO).is_none() {
        return Some("whose relocations can be written");
    }
    if find(GNU_STACK).is_none_or(|header| number(header + 4, 4) & EXECUTE != 0) {
        return Some("with a stack that can be executed");
    }
    let dynamic = find(DYNAMIC)?;
    let begin = number(dynamic + 8, 8);
    let length = number(dynamic + 32, 8);
    let mut entries = (0..length / 16).map(|index| {
        (
            number(begin + index * 16, 8),
            number(begin + index * 16 + 8, 8),
        )
    });
    let bound = entries.any(|(tag, value)| tag == FLAGS && value & BIND_NOW != 0);
    (!bound).then_some("whose relocations are not done before it begins")
}
