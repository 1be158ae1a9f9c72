//! Shared by the tests: threads with network namespaces of their own, which end with them; subnets from text.

pub(crate) mod hosts;

use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};

use crate::nft::NftSubnet;

/// Runs `test` on a thread with its own network namespace. Threads that it starts inherit the namespace, which ends with the last of them,
/// and with it all devices, also after a panic.
pub(crate) fn in_private_netns<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    let outcome = thread::scope(|scope| {
        let private = || {
            unshare(CloneFlags::CLONE_NEWNET)
                .expect("these tests make network namespaces and so must run as root");
            test()
        };
        scope.spawn(private).join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The subnet of a text as `10.88.0.0/24`.
#[track_caller]
pub(crate) fn subnet(text: &str) -> NftSubnet {
    let (address, prefix) = text.split_once('/').unwrap();
    NftSubnet::new(address.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

/// Runs a program that the tests need in the namespace of this thread, and returns what it printed.
pub(crate) fn run(program: &str, package: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; install the package {package}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
