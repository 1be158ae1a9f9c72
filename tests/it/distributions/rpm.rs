//! Tests of the scripts of the rpm, as they are in the specification from which it is made.

use std::fs;
use std::process::{Command, Output};

use switchyard_tests::scratch::Scratch;

use super::packages::Maker;

/// Programs in the place of those of a node. The first one has this status when it is asked about networks.
const PROGRAMS: &str = r#"
switchyard() {
    echo "switchyard $*"
    [ "$2" != networks ] || return "$NEEDED"
}
systemctl() { echo "systemctl $*"; }
ip() { echo "ip $*"; }
sleep() { :; }
"#;

/// Runs the script before a removal with this argument of rpm, on a node with a bridge that pods had, one that somebody uses, and a device that
/// is no bridge.
fn run_preun(script: &str, argument: &str, has_systemd: bool, needed: u8) -> Output {
    let scratch = Scratch::new();
    let root = scratch.path();
    for file in [
        "state/network/pods0.pods",
        "state/network/used0.pods",
        "state/network/eth0.pods",
        "devices/used0/brif/veth0",
        "devices/pods0/brif/none",
        "devices/eth0/address",
        "addresses/pods0/lock",
        "addresses/cni0/lock",
    ] {
        let path = root.join(file);
        let dir = path.parent().expect("it is in a directory");
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        if !file.ends_with("/none") {
            fs::write(path, "").expect("the scratch directory can be written");
        }
    }
    if has_systemd {
        fs::create_dir(root.join("systemd")).expect("the scratch directory can be written");
    }
    let root = root.display().to_string();
    let places =
        format!("state={root}/state devices={root}/devices addresses={root}/addresses\n{PROGRAMS}");
    // As rpm expands it.
    let script = script
        .replace("%%", "%")
        .replace("/usr/bin/switchyard", "switchyard")
        .replace("/run/systemd/system", &format!("{root}/systemd"));
    let (functions, steps) = script
        .split_once("\nif [ \"$1\" -eq 0 ]; then\n")
        .expect("its functions stand before its steps");
    let script = format!("{functions}\n{places}\nif [ \"$1\" -eq 0 ]; then\n{steps}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", argument]);
    let output = command.env("NEEDED", needed.to_string()).output();
    assert!(fs::exists(format!("{root}/addresses/cni0/lock")).is_ok_and(|is_there| is_there));
    output.expect("every system has a shell")
}

#[test]
fn removal_takes_the_bridges_of_pods_and_an_upgrade_or_an_image_does_not() {
    let maker = Maker::new();
    let spec = maker.rpm_specification();
    let script = spec.split_once("\n%preun\n").and_then(|(_, script)| {
        let (script, _) = script.split_once("\n%postun\n")?;
        Some(script)
    });
    let script = script.expect("it has this script");
    // A single one begins a macro.
    assert!(!script.replace("%%", "").contains('%'), "{script}");
    let networks = "switchyard package networks";
    let leaves = [networks, "switchyard package leave"];
    let ends = [
        "systemctl stop switchyard.service",
        "ip link delete dev pods0",
    ];
    let stays = "switchyard: the bridge used0 stays, because something is connected to it: remove it if nobody needs it";
    for (argument, has_systemd, needed, expected) in [
        ("0", true, 0, [&leaves[..], &ends, &[stays]].concat()),
        // One that cannot say whether it is needed keeps nobody from removing it.
        ("0", true, 1, [&leaves[..], &ends, &[stays]].concat()),
        ("0", false, 0, leaves.to_vec()),
        ("0", true, 3, vec![networks]),
        ("1", true, 0, Vec::new()),
        ("1", false, 3, Vec::new()),
    ] {
        let output = run_preun(script, argument, has_systemd, needed);
        let row = format!("{argument} {has_systemd} {needed}: {output:?}");
        assert_eq!(
            output.status.success(),
            needed != 3 || argument != "0",
            "{row}"
        );
        let said = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines, expected, "{row}");
        assert!(output.stderr.is_empty(), "{row}");
    }
}
