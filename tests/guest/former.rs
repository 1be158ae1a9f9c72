//! The package of the former version, the commit in `tests/former`: this version's replaces it and is replaced by it, each with its own
//! scripts, units and programs, by the commands of docs/fleet.md, under a pod that holds a port, a device and a volume, and a task of Nomad.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::image_spec;
use switchyard_tests::documents::commands;
use switchyard_tests::host::{eventually, free_port};
use switchyard_tests::http;
use switchyard_tests::stub_programs::StubPrograms;
use switchyard_tests::versions::FORMER_FACT;
use tonic::{Code, Status};

use crate::node::{GuestFact, GuestNode, GuestPod, LIMIT, property, run};
use crate::packages::{Counting, CountingTask, NOW, helpers, text};

pub(crate) const FACTS: &[GuestFact] = &[(FORMER_FACT, upgrade_and_way_back)];

/// The former version's package.
const FORMER: &str = "/tests/packages/former.deb";

const FLEET: &str = include_str!("../../docs/fleet.md");

/// A device that `tests/guest/run` creates.
const DEVICE: &str = "/var/lib/guest-devices/given9";

/// A named volume.
const VOLUME: &str = "held";

/// Serves a page on port 80.
const SERVE: &str =
    "mkdir /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www";

/// Returns whether this guest has the former version's package: only `tests/vm --former` makes it.
pub(crate) fn has_package() -> bool {
    Path::new(FORMER).exists()
}

/// The commands of docs/fleet.md that install a package. The guest is the only node, and no repository has its packages.
struct Recipes {
    stubs: StubPrograms,
    upgrade: String,
    way_back: String,
}

// === impl Recipes ===

impl Recipes {
    fn read() -> Self {
        let stubs = StubPrograms::new(
            PathBuf::from("/var/lib/guest-recipes"),
            &[
                ("ssh", "shift; exec \"$@\"\n"),
                ("sudo", "exec env \"$@\"\n"),
            ],
        );
        stubs.write("one", "guest\n");
        stubs.write("tenth", "");
        let upgrade_node = commands(FLEET, "switchyard status --wait");
        let mut lines = upgrade_node.lines();
        let upgrade = lines.find(|line| line.starts_with("apt-get install "));
        let way_back = commands(FLEET, "--allow-downgrades");
        // The last command only shows the node, which need not be ready yet.
        let (way_back, status) = way_back
            .trim_end()
            .rsplit_once('\n')
            .expect("it has several commands");
        assert!(status.ends_with("switchyard status"), "{status}");
        Self {
            stubs,
            upgrade: of_file(upgrade.expect("it installs"), "\"switchyard=$1\"", NOW),
            way_back: of_file(way_back, "\"switchyard=$former\"", FORMER),
        }
    }

    #[track_caller]
    fn run(&self, script: &str) {
        let output = self
            .stubs
            .shell(script, &[])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output()
            .expect("every system has a shell");
        assert!(output.status.success(), "{script}: {}", text(&output));
    }
}

impl Drop for Recipes {
    fn drop(&mut self) {
        fs::remove_dir_all(self.stubs.dir()).expect("it was created here");
    }
}

/// The same commands, with the file of a package instead of its version.
#[track_caller]
fn of_file(commands: &str, version: &str, file: &str) -> String {
    assert_eq!(commands.matches(version).count(), 1, "{commands}");
    commands.replace(version, file)
}

/// A pod that counts, serves a page on a port of the host and has a device and a volume, beside a task of Nomad, and a pod that wants the
/// device.
struct HoldingPod<'n> {
    node: &'n GuestNode,
    counting: Counting<'n>,
    process: String,
    port: u16,
    /// The container with the volume.
    keeper: String,
    task: CountingTask,
    thief: GuestPod<'n>,
    failed_units: String,
}

// === impl HoldingPod ===

impl<'n> HoldingPod<'n> {
    fn start(node: &'n GuestNode) -> Self {
        let failed_units = failed_units();
        let port = free_port();
        let pod = node.pod_from(with_port(node.pod_config("holding"), port), "");
        let _ = pod.start_shell("server", SERVE);
        let keeper = node.cri.create_v1alpha2(&pod.id, &with_volume(node));
        let keeper = keeper.unwrap_or_else(|status| panic!("CreateContainer: {status}"));
        node.cri.start(&keeper).expect("it was created");
        assert_eq!(node.cri.sh(&keeper, "echo precious >/kept/file"), "");
        let counting = Counting::start_in(node, pod, |config| config.devices = devices());
        let process = counting.process();
        Self {
            node,
            counting,
            process,
            port,
            keeper,
            task: CountingTask::start(node),
            thief: node.pod("thief"),
            failed_units,
        }
    }

    /// Fails unless all run as before, without a gap in their logs, after this many replacements of the daemon, and what they hold is
    /// refused to others.
    #[track_caller]
    fn assert_continues(&self, replacements: u32, when: &str) {
        self.counting.assert_goes_on(&self.process);
        self.task.assert_goes_on(replacements);
        assert_eq!(failed_units(), self.failed_units, "{when}");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let answers = || http::get(address, "/").is_ok_and(|page| page.text() == "hello\n");
        assert!(eventually(LIMIT, answers), "{when}: nobody is at {address}");

        let cri = &self.node.cri;
        let other = with_port(self.node.pod_config("other"), self.port);
        let taken = format!("{}/tcp", self.port);
        assert_refused(cri.run_pod(&other), &taken, when);
        let mut config = self.node.container("main", "exec sleep 1000");
        config.devices = devices();
        let refused = cri.create(&self.thief.id, &config, &self.thief.config);
        assert_refused(refused, "is held by", when);
        let given = format!("test -c {DEVICE} && echo given");
        assert_eq!(cri.sh(&self.counting.container, &given), "given", "{when}");
        let removed = cri.remove_volume(VOLUME);
        assert!(removed.is_err(), "{when}: the volume is not held");
        assert_eq!(cri.sh(&self.keeper, "cat /kept/file"), "precious", "{when}");
    }

    /// Ends all, after this many replacements of the daemon.
    #[track_caller]
    fn end(self, replacements: u32) {
        self.task.end(replacements);
        let cri = &self.node.cri;
        drop((self.counting, self.thief));
        cri.remove_volume(VOLUME).expect("nobody has it");
    }
}

fn with_port(mut config: cri::PodSandboxConfig, port: u16) -> cri::PodSandboxConfig {
    config.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: port.into(),
        ..Default::default()
    }];
    config
}

/// A container with the volume.
fn with_volume(node: &GuestNode) -> old::ContainerConfig {
    let mount = old::Mount {
        container_path: "/kept".to_owned(),
        name: VOLUME.to_owned(),
        ..Default::default()
    };
    old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "keeper".to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(&node.image())),
        command: ["sleep", "10000"].map(str::to_owned).to_vec(),
        mounts: vec![mount],
        log_path: "keeper.log".to_owned(),
        ..Default::default()
    }
}

fn devices() -> Vec<cri::Device> {
    vec![cri::Device {
        container_path: DEVICE.to_owned(),
        host_path: DEVICE.to_owned(),
        permissions: "rw".to_owned(),
    }]
}

/// Fails unless this is refused because a pod has it.
#[track_caller]
fn assert_refused(result: Result<String, Status>, part: &str, when: &str) {
    let status = result.expect_err("it is held");
    let message = status.message();
    assert!(
        status.code() == Code::FailedPrecondition
            && message.contains(part)
            && message.contains("kubernetes"),
        "{when}: {status}"
    );
}

/// The units of the guest that have failed, a line for each.
fn failed_units() -> String {
    run(&[
        "systemctl",
        "list-units",
        "--failed",
        "--plain",
        "--no-legend",
    ])
}

/// The version and the commit of the installed program.
fn installed() -> String {
    run(&["switchyard", "version", "--output", "json"])
}

/// Fails unless the main process of a unit executes the installed program, rather than one that was replaced.
#[track_caller]
fn assert_is_current(unit: &str, when: &str) {
    let process = property(unit, "MainPID");
    let program = fs::read_link(format!("/proc/{process}/exe"));
    let program = program.unwrap_or_else(|error| panic!("{when}: {unit}: {error}"));
    assert_eq!(program, Path::new("/usr/bin/switchyard"), "{when}: {unit}");
}

/// Restarts the logkeeper and containerd by the command of the installed version, whose logkeeper runs then.
#[track_caller]
fn restart_helpers(when: &str) {
    for part in ["logkeeper", "containerd"] {
        run(&["switchyard", "restart", part]);
    }
    assert_is_current("switchyard-logkeeper", when);
}

fn upgrade_and_way_back(node: &GuestNode) {
    let recipes = Recipes::read();
    let this = installed();
    recipes.run(&recipes.way_back);
    node.wait_ready();
    let former = installed();
    assert_ne!(former, this, "the packages have the same program");
    restart_helpers("before the upgrade");
    let pod = HoldingPod::start(node);
    pod.assert_continues(0, "before the upgrade");
    let ways = [
        (&recipes.upgrade, &this, "after the upgrade"),
        (&recipes.way_back, &former, "after the way back"),
    ];
    for ((script, program, when), replacements) in ways.into_iter().zip(1..) {
        let daemon = property("switchyard", "MainPID");
        let helpers_before = helpers();
        recipes.run(script);
        pod.assert_continues(replacements, when);
        assert_eq!(installed(), *program, "{when}");
        assert_ne!(property("switchyard", "MainPID"), daemon, "{when}");
        assert_is_current("switchyard", when);
        assert_eq!(helpers(), helpers_before, "{when}: they continue");
        if program == &this {
            restart_helpers(when);
            pod.assert_continues(replacements, "after the upgrade of its helpers");
        }
    }
    pod.end(2);
    recipes.run(&recipes.upgrade);
}
