//! Chooses the C compiler of build scripts, as the crate `cc` does for those of others.

use std::env;
use std::ffi::OsString;

/// Returns what compiles C for the target: what the variables name, or GCC by the name that Debian gives it for another architecture.
pub(crate) fn compiler() -> OsString {
    let of = |variable: &str| env::var(variable).expect("cargo sets it");
    let (host, target) = (of("HOST"), of("TARGET"));
    let general = if host == target { "HOST" } else { "TARGET" };
    let variables = [
        format!("CC_{target}"),
        format!("CC_{}", target.replace('-', "_")),
        format!("{general}_CC"),
        "CC".to_owned(),
    ];
    for variable in &variables {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let architecture = of("CARGO_CFG_TARGET_ARCH");
    variables.iter().find_map(env::var_os).unwrap_or_else(|| {
        if host.starts_with(&format!("{architecture}-")) {
            "cc".into()
        } else {
            format!("{architecture}-linux-gnu-gcc").into()
        }
    })
}
