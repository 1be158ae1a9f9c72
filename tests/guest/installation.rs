//! The installation of the package: it fails, with the reason, where the new daemon would not start or does not work, and
//! succeeds where none is to be started. And an upgrade by hand, without the package.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use switchyard_tests::documents::commands;

use crate::daemon::assert_counts_on;
use crate::node::{GuestFact, GuestNode, property, run};
use crate::packages::{Counting, NOW, VARIABLES, dpkg, dpkg_succeeds, text};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "package_with_a_refused_configuration_leaves_the_old_daemon",
        refused_configuration,
    ),
    (
        "package_is_installed_where_no_daemon_is_to_start",
        nothing_to_start,
    ),
    (
        "program_and_units_are_replaced_and_put_back_without_the_package",
        without_the_package,
    ),
];

/// A drop-in that the tests write.
const REFUSED: &str = "/etc/switchyard/config.d/90-refused.toml";

/// A drop-in of the daemon's unit that the tests write.
const OF_UNIT: &str = "/run/systemd/system/switchyard.service.d/90-refused.conf";

/// A checkout with a later version.
const CHECKOUT: &str = "/var/lib/guest-checkout";

/// A line that its units have.
const LATER: &str = "# Of a later version.";

fn refused_configuration(node: &GuestNode) {
    let counting = Counting::start(node, "old-daemon");
    let process = counting.process();
    let drop_in = Path::new(REFUSED);
    fs::write(drop_in, "version = 1\n[exec]\nmax_per_container = 0\n").expect("root may");
    let daemon = property("switchyard", "MainPID");
    let refused = |words: &[&str], parts: &[&str]| {
        let output = dpkg(words);
        let said = text(&output);
        assert!(!output.status.success(), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    let configure = ["--configure", "switchyard"];
    let continues = format!("process {daemon}) continues until");
    refused(
        &["--install", NOW],
        &["90-refused.toml:3: exec.max_per_container", &continues],
    );
    // A variable of a drop-in of the unit.
    fs::remove_file(drop_in).expect("root may");
    let of_unit = Path::new(OF_UNIT);
    fs::create_dir_all(of_unit.parent().expect("it has one")).expect("root may");
    let variable = "SWITCHYARD_EXEC__MAX_PER_CONTAINER";
    fs::write(of_unit, format!("[Service]\nEnvironment={variable}=0\n")).expect("root may");
    run(&["systemctl", "daemon-reload"]);
    let fault = format!("{variable}: exec.max_per_container");
    refused(&configure, &[&fault, &continues]);
    fs::remove_file(of_unit).expect("root may");
    run(&["systemctl", "daemon-reload"]);
    // What only the unit has, and what only the node has.
    fs::write(VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT=collector\n").expect("root may");
    let of_node = "version = 1\n[admin]\nsocket_group = \"no-such-group\"\n\
                   [cri.streaming]\ntls_certificate = \"/etc/passwd\"\ntls_key = \"/etc/passwd\"\n";
    fs::write(drop_in, of_node).expect("root may");
    let faults = [
        "group \"no-such-group\" does not exist",
        "/etc/passwd",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        &continues,
    ];
    refused(&configure, &faults);
    assert_eq!(
        property("switchyard", "MainPID"),
        daemon,
        "the old daemon continues"
    );
    counting.assert_goes_on(&process);

    // What only the start itself can find out.
    fs::remove_file(VARIABLES).expect("root may");
    let in_the_way = "version = 1\n[nomad]\nsocket = \"/etc/passwd\"\n";
    fs::write(drop_in, in_the_way).expect("root may");
    let faults = [
        "daemon: cannot listen on /etc/passwd: the path exists",
        "run 'dpkg --configure switchyard'",
    ];
    refused(&configure, &faults);
    assert_counts_on(&counting.pod);
    // A key of a later version does not stop a start, so it stops no installation.
    fs::write(drop_in, "version = 1\n[exec]\nof_a_later_version = 1\n").expect("root may");
    let said = dpkg_succeeds(&configure);
    assert!(said.contains("90-refused.toml:3: unknown key"), "{said}");
    assert_ne!(property("switchyard", "MainPID"), daemon);
    assert!(!Path::new("/run/switchyard/parts-before-upgrade.json").exists());
    node.wait_ready();
    let status = || run(&["switchyard", "status"]);
    assert!(status().contains("of_a_later_version"), "{}", status());
    fs::remove_file(drop_in).expect("root may");
    run(&["switchyard", "config", "reload"]);
    assert!(!status().contains("of_a_later_version"), "{}", status());
    counting.assert_goes_on(&process);
}

/// Runs the package's script as dpkg does for an upgrade, by the command `wrapper`, under an invalid configuration; it succeeds.
#[track_caller]
fn postinst_succeeds(wrapper: &[&str]) -> String {
    fs::write(REFUSED, "[[[\n").expect("root may");
    let script = "/var/lib/dpkg/info/switchyard.postinst";
    let words = [wrapper, &[script, "configure", "0.0.1-1"]].concat();
    let output = Command::new("env")
        .args(words)
        .env("DPKG_MAINTSCRIPT_PACKAGE", "switchyard")
        .output()
        .expect("it can be run");
    fs::remove_file(REFUSED).expect("root may");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    said
}

fn nothing_to_start(node: &GuestNode) {
    let daemon = property("switchyard", "MainPID");
    let policy = Path::new("/usr/sbin/policy-rc.d");
    fs::write(policy, "#!/bin/sh\nexit 101\n").expect("root may");
    run(&["chmod", "0755", "/usr/sbin/policy-rc.d"]);
    let said = postinst_succeeds(&[]);
    fs::remove_file(policy).expect("root may");
    assert!(
        said.contains("will not start with this configuration"),
        "{said}"
    );

    // As in a chroot.
    let without_systemd = "mount -t tmpfs tmpfs /run/systemd && exec \"$@\"";
    let said = postinst_succeeds(&["unshare", "--mount", "sh", "-ec", without_systemd, "sh"]);
    assert!(
        said.contains("will not start with this configuration"),
        "{said}"
    );

    assert_eq!(property("switchyard", "MainPID"), daemon);

    run(&["systemctl", "stop", "switchyard"]);
    run(&["systemctl", "mask", "--runtime", "switchyard"]);
    let said = postinst_succeeds(&[]);
    assert!(said.contains("the daemon is not started here"), "{said}");
    assert!(said.contains("as its unit demands"), "{said}");
    assert_eq!(property("switchyard", "ActiveState"), "inactive");
    run(&["systemctl", "unmask", "--runtime", "switchyard"]);
    run(&["systemctl", "start", "switchyard"]);
    node.wait_ready();
}

/// Makes the checkout, and installs the units of this version where an installation without the package has them, by
/// this command.
fn make_checkout(install_units: &str) {
    let script = format!(
        "mkdir -p {CHECKOUT}/target/release {CHECKOUT}/deploy/systemd
         cp /tests/switchyard {CHECKOUT}/target/release
         cp /usr/lib/systemd/system/switchyard*.service {CHECKOUT}/deploy/systemd
         cd {CHECKOUT}
         {install_units}
         systemctl daemon-reload
         echo >>target/release/switchyard
         echo '{LATER}' | tee -a deploy/systemd/*.service"
    );
    run(&["sh", "-ec", &script]);
}

/// Runs commands of docs/packages.md in the checkout, up to the first one that fails.
fn in_checkout(script: &str) -> Output {
    Command::new("sh")
        .args(["-ec", script])
        .current_dir(CHECKOUT)
        .output()
        .expect("it can be run")
}

#[track_caller]
fn succeeds_in_checkout(script: &str) {
    let output = in_checkout(script);
    assert!(output.status.success(), "{}", text(&output));
}

fn size(program: &str) -> u64 {
    let metadata = fs::metadata(program);
    metadata.expect("the program is there").len()
}

fn without_the_package(node: &GuestNode) {
    let counting = Counting::start(node, "by-hand");
    let process = counting.process();
    let document = include_str!("../../docs/packages.md");
    let is_of_units = |line: &&str| line.starts_with("install -m 0644 deploy/systemd/");
    let first = commands(document, "systemctl enable --now");
    let install_units = first.lines().find(is_of_units);
    make_checkout(install_units.expect("the units are installed"));
    let recipe = commands(document, "/usr/bin/switchyard.new");
    let in_place = || {
        let unit = fs::read_to_string("/etc/systemd/system/switchyard.service");
        let unit = unit.expect("the unit is there");
        (size("/usr/bin/switchyard"), unit.contains(LATER))
    };
    let before = in_place();
    let later = (size(&format!("{CHECKOUT}/target/release/switchyard")), true);
    assert_ne!(later.0, before.0);

    let daemon = property("switchyard", "MainPID");
    fs::write(REFUSED, "version = 1\n[exec]\nmax_per_container = 0\n").expect("root may");
    let refused = in_checkout(&recipe);
    let said = text(&refused);
    assert!(
        !refused.status.success() && said.contains("90-refused.toml:3"),
        "{said}"
    );
    assert_eq!(in_place(), before);
    assert_eq!(property("switchyard", "MainPID"), daemon);
    fs::remove_file(REFUSED).expect("root may");

    // As on a full disk, what is written of a unit ends in the middle.
    let cut = |line| match is_of_units(&line) {
        true => format!("sh -c 'ulimit -f 1; exec {line}'\n"),
        false => format!("{line}\n"),
    };
    let cut: String = recipe.lines().map(cut).collect();
    assert!(!in_checkout(&cut).status.success(), "{cut}");
    assert_eq!(in_place(), before);
    assert_eq!(property("switchyard", "MainPID"), daemon);

    succeeds_in_checkout(&recipe);
    assert_eq!(in_place(), later);
    assert_ne!(property("switchyard", "MainPID"), daemon);
    counting.assert_goes_on(&process);

    let back: Vec<_> = recipe
        .lines()
        .filter(|line| !line.contains("/root/"))
        .collect();
    let back = back.join("\n");
    succeeds_in_checkout(
        &back
            .replace("target/release/", "/root/switchyard.before/")
            .replace("deploy/systemd/", "/root/switchyard.before/"),
    );
    assert_eq!(in_place(), before);
    counting.assert_goes_on(&process);

    // The package's own again.
    let of_hand =
        format!("rm -r {CHECKOUT} /root/switchyard* /etc/systemd/system/switchyard*.service");
    run(&["sh", "-ec", &of_hand]);
    dpkg_succeeds(&["--install", NOW]);
    counting.assert_goes_on(&process);
}
