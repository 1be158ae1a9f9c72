//! Debian's firewalld beside a bridge that the daemon makes itself: what it closes, what opens that, and that the daemon's tables and its
//! published ports stay as they are while firewalld starts, reloads and ends. Another network namespace is the machine beyond the node.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::host::{self, SetOnDrop, eventually};
use switchyard_tests::http;
use switchyard_tests::nomad::{Agent, TaskSetup};

use crate::node::{GuestFact, GuestNode, LIMIT, property, run, succeeds, try_run};
use crate::nomad::{agent, task};
use crate::units::doctor_finds;

pub(crate) const FACTS: &[GuestFact] = &[(
    "firewalld_leaves_published_ports_and_tables_alone_and_is_opened_as_documented",
    firewalld_is_opened_as_documented,
)];

/// The daemon's configuration meanwhile: the driver that a new node has.
const CONFIG: &str = "/etc/switchyard/config.d/guest-firewalld.toml";
const NATIVE: &str = "version = 1\n[network]\nisolation = \"bridge\"\ndirect_routing = false\n\
     [network.bridge]\ndriver = \"native\"\nipv6 = false\n";
/// The configuration of an agent: on a node without one, `switchyard doctor` takes the bridge for unused.
const AGENT_DIR: &str = "/etc/nomad.d";
const AGENT: &str = "/etc/nomad.d/guest-firewalld.hcl";
const CLIENT: &str = "client {\n  enabled = true\n}\n";
/// The gateway's own bridge, and its addresses, by default.
const BRIDGE: &str = "switchyard0";
const SUBNET: &str = "172.26.80.0/20";
/// The network namespaces of the node and of the other machine, and the node's device for the way to it.
const HERE: &str = "/proc/self/ns/net";
const MACHINE: &str = "/run/guest-far";
const UPLINK: &str = "guest-far0";
/// The addresses of the node and of the other machine on that way.
const NODE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// The published port of the task.
const PORT: u16 = 18_081;
/// Serves a page.
const SERVE: &str = "mkdir -p /local/www && echo hello > /local/www/index.html && exec httpd -f -p 8080 -h /local/www";
/// The pause between two looks for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Files of firewalld's configuration: that of the zone `trusted`, which `firewall-cmd` writes, and what docs/network.md has for a zone and
/// a policy of one's own.
const TRUSTED: &str = "/etc/firewalld/zones/trusted.xml";
const TRUSTED_BEFORE: &str = "/etc/firewalld/zones/trusted.xml.old";
const ZONE: (&str, &str) = (
    "/etc/firewalld/zones/switchyard.xml",
    "<zone>\n  <source address=\"172.26.80.0/20\"/>\n</zone>\n",
);
const POLICY: (&str, &str) = (
    "/etc/firewalld/policies/switchyard-out.xml",
    "<policy target=\"ACCEPT\">\n  <ingress-zone name=\"switchyard\"/>\n  <egress-zone name=\"ANY\"/>\n</policy>\n",
);

/// firewalld on the bus, by its name, its object and the interface of its own calls.
const BUS: [&str; 3] = [
    "org.fedoraproject.FirewallD1",
    "/org/fedoraproject/FirewallD1",
    "org.fedoraproject.FirewallD1",
];
/// The calls by which firewalld reads its configuration again, as `firewall-cmd --reload` and `--complete-reload` make them.
const RELOAD: &str = "reload";
const COMPLETE_RELOAD: &str = "completeReload";
/// A port that is open at run time alone, until a reload.
const MARK: &str = "9/udp";

/// A program before `busctl` in the `PATH` of the daemon, by which `switchyard doctor` finds programs: it notes each call with its exit status.
const NOTING: (&str, &str) = (
    "/usr/local/sbin/busctl",
    "#!/bin/sh\n/usr/bin/busctl \"$@\"\nstatus=$?\necho \"$status $*\" >>/run/guest-busctl\nexit $status\n",
);
const NOTES: &str = "/run/guest-busctl";
/// What the doctor asks firewalld before it judges a zone.
const QUESTIONS: [&str; 3] = [
    "FirewallD1 getDefaultZone",
    "zone getActiveZones",
    "policy getActivePolicies",
];

/// The daemon with the driver `native`, and an agent's configuration, until this is dropped, which also removes what it has made of the bridge.
struct NativeDriver;

impl NativeDriver {
    #[track_caller]
    fn set(node: &GuestNode) -> Self {
        let set = Self;
        fs::create_dir_all(AGENT_DIR).expect("root may");
        fs::write(AGENT, CLIENT).expect("root may");
        fs::write(CONFIG, NATIVE).expect("root may");
        run(&["systemctl", "restart", "switchyard"]);
        node.wait_ready();
        set
    }
}

impl Drop for NativeDriver {
    fn drop(&mut self) {
        let _ = fs::remove_file(CONFIG);
        let _ = fs::remove_file(AGENT);
        // Only if it is empty.
        let _ = fs::remove_dir(AGENT_DIR);
        try_run(&["systemctl", "restart", "switchyard"]);
        // The network of the task ends behind the answer.
        let is_cleared = || succeeds(&["switchyard", "network", "clear"]);
        if !eventually(LIMIT, is_cleared) {
            println!("the tables are left");
        }
        if has_bridge() {
            try_run(&["ip", "link", "delete", BRIDGE]);
        }
    }
}

fn has_bridge() -> bool {
    Path::new("/sys/class/net").join(BRIDGE).exists()
}

/// An accept of iptables for what comes from the bridge, before all other rules, until this is dropped.
struct AcceptFirst;

impl AcceptFirst {
    const RULE: [&str; 5] = ["FORWARD", "-i", BRIDGE, "-j", "ACCEPT"];

    #[track_caller]
    fn insert() -> Self {
        run(&[&["iptables", "-I"][..], &Self::RULE].concat());
        Self
    }
}

impl Drop for AcceptFirst {
    fn drop(&mut self) {
        try_run(&[&["iptables", "-D"][..], &Self::RULE].concat());
    }
}

/// Notes what `switchyard doctor` asks by the bus, until this is dropped.
struct NotedCalls;

impl NotedCalls {
    fn begin() -> Self {
        let noted = Self;
        let (program, script) = NOTING;
        fs::write(program, script).expect("root may");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(program, executable).expect("root may");
        noted
    }

    /// Forgets the calls so far.
    fn clear() {
        fs::write(NOTES, "").expect("root may");
    }

    /// Returns whether each of these calls was answered.
    fn are_answered(questions: &[&str]) -> bool {
        let notes = fs::read_to_string(NOTES).unwrap_or_default();
        questions.iter().all(|question| {
            let mut lines = notes.lines();
            lines.any(|line| line.starts_with("0 ") && line.ends_with(question))
        })
    }
}

impl Drop for NotedCalls {
    fn drop(&mut self) {
        try_run(&["rm", "--force", NOTING.0, NOTES]);
    }
}

/// The other machine, with a server that tells its clients their address.
struct OtherMachine {
    listener: TcpListener,
    _way: WayBeyond,
}

/// The network namespace of the other machine, and the way to it. Dropping this removes both.
struct WayBeyond;

impl OtherMachine {
    #[track_caller]
    fn connect() -> Self {
        let way = WayBeyond;
        let [node, machine] = [HERE, MACHINE].map(Path::new);
        host::connect_machine(node, UPLINK, machine, [NODE, THEIRS]);
        let listener = within(|| TcpListener::bind((THEIRS, 0)).expect("the address is its own"));
        let set = listener.set_nonblocking(true);
        set.expect("it is a socket");
        Self {
            listener,
            _way: way,
        }
    }

    /// Tells each client its address.
    fn serve_until(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((mut stream, client)) => {
                    // One that is gone needs no answer.
                    let _ = writeln!(stream, "{}", client.ip());
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for WayBeyond {
    fn drop(&mut self) {
        // The device of the node goes with its other end.
        try_run(&["ip", "link", "delete", UPLINK]);
        try_run(&["umount", MACHINE]);
        try_run(&["rm", "--force", MACHINE]);
    }
}

/// Does something on the other machine.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = host::within(Path::new(MACHINE), work).join();
    done.expect("the thread ends")
}

/// Debian's firewalld with the configuration of its package. Dropping this ends it, and removes what was configured.
struct Firewalld;

impl Firewalld {
    #[track_caller]
    fn start() -> Self {
        let started = Self;
        run(&["systemctl", "start", "firewalld"]);
        Self::wait();
        started
    }

    /// Waits until it answers. It has its name on the bus before it has made its rules, and answers when they are there.
    #[track_caller]
    fn wait() {
        let is_running = || succeeds(&["firewall-cmd", "--state"]);
        assert!(eventually(LIMIT, is_running), "firewalld does not run");
    }

    /// Has it read its configuration again, which undoes what was changed at run time alone. Its own client would wait for 25 seconds, which
    /// an emulated one may exceed.
    #[track_caller]
    fn reload(call: &str) {
        let ports = || run(&["firewall-cmd", "--zone=public", "--list-ports"]);
        let mark = format!("--add-port={MARK}");
        run(&["firewall-cmd", "--zone=public", &mark]);
        assert_eq!(ports(), MARK);
        let limit = format!("--timeout={}", LIMIT.as_secs());
        run(&[&["busctl", limit.as_str(), "call"][..], &BUS, &[call]].concat());
        Self::wait();
        assert_eq!(ports(), "", "{call} has undone nothing");
    }

    /// Checks which zone the bridge's addresses have.
    #[track_caller]
    fn assert_zone(expected: &str, when: &str) {
        let source = format!("--get-zone-of-source={SUBNET}");
        assert_eq!(run(&["firewall-cmd", &source]), expected, "{when}");
    }
}

impl Drop for Firewalld {
    fn drop(&mut self) {
        // firewalld asks polkit whether root may call it, by which polkit is started.
        try_run(&["systemctl", "stop", "firewalld", "polkit"]);
        for file in [TRUSTED, TRUSTED_BEFORE, ZONE.0, POLICY.0] {
            let _ = fs::remove_file(file);
        }
    }
}

/// A task of Nomad on the gateway's own bridge, with a port, and who reaches whom. Dropping this ends the task.
struct Connections<'a> {
    machine: &'a OtherMachine,
    agent: &'a Agent,
    task: &'a TaskSetup,
}

impl Connections<'_> {
    /// The address that the other machine sees when the task connects to it; `None` if it does not get there.
    fn seen_beyond(&self) -> Option<String> {
        let port = self.machine.listener.local_addr();
        let port = port.expect("it is bound").port();
        let command = format!("nc -w 10 {THEIRS} {port} </dev/null");
        let machine = self.machine;
        let is_over = AtomicBool::new(false);
        let output = thread::scope(|scope| {
            scope.spawn(|| machine.serve_until(&is_over));
            let _over = SetOnDrop(&is_over);
            let words = ["sh", "-c", command.as_str()];
            self.agent.driver().exec(self.task.id(), &words, LIMIT)
        });
        let output = output.unwrap_or_else(|status| panic!("{command}: {status}"));
        (output.code == 0).then(|| output.stdout.trim_end().to_owned())
    }

    #[track_caller]
    fn assert_leave(&self, when: &str) {
        let expected = Some(NODE.to_string());
        let mut last = None;
        let is_open = eventually(LIMIT, || {
            last = self.seen_beyond();
            last == expected
        });
        assert!(is_open, "{when}: the other machine sees {last:?}");
    }

    #[track_caller]
    fn assert_do_not_leave(&self, when: &str) {
        let is_closed = eventually(LIMIT, || self.seen_beyond().is_none());
        assert!(is_closed, "{when}: the task reaches the other machine");
    }

    /// The published port is reached from the node and from the other machine.
    #[track_caller]
    fn assert_come_in(&self, when: &str) {
        let ask = || {
            let page = http::get(SocketAddr::from((NODE, PORT)), "/");
            page.is_ok_and(|page| page.text() == "hello\n")
        };
        assert!(eventually(LIMIT, ask), "{when}: not from the node");
        let is_reached = within(move || eventually(LIMIT, ask));
        assert!(is_reached, "{when}: not from the other machine");
    }
}

impl Drop for Connections<'_> {
    fn drop(&mut self) {
        // Also after a failure: with it, the facts of packages could not go back to an earlier version.
        if let Err(status) = self.agent.driver().destroy(self.task.id(), true) {
            println!("the task stays: {status}");
        }
    }
}

/// A task that serves a page at a published port.
fn server(agent: &Agent, image: &str) -> TaskSetup {
    let mut server = task(agent, image, SERVE, json!({ "ports": ["http"] }));
    let published = nomad::PortMapping {
        label: "http".to_owned(),
        value: PORT.into(),
        to: 8080,
        host_ip: NODE.to_string(),
    };
    let resources = server.config.resources.as_mut();
    resources.expect("it has some").ports.push(published);
    server
}

/// Shows what the daemon has in its tables, and whether these are intact.
fn tables() -> String {
    run(&["switchyard", "network", "show"])
}

#[track_caller]
fn assert_tables_are(expected: &str, when: &str) {
    let is_so = eventually(LIMIT, || tables() == expected);
    assert!(is_so, "{when}: {} instead of {expected}", tables());
}

/// Lists what `switchyard doctor` finds about packets that are not let through.
fn told() -> Vec<String> {
    let found = doctor_finds().into_iter();
    found
        .filter(|(kind, _)| kind == "SY316 warning")
        .map(|(_, found)| found)
        .collect()
}

/// Checks what `switchyard doctor` tells when firewalld has answered [`QUESTIONS`] and more of them: without an answer it would tell nothing. Polls,
/// since an emulated firewalld may answer later than the 5 seconds for which it waits.
#[track_caller]
fn assert_told(expected: &[&str], more: &[&str], when: &str) {
    let questions = [&QUESTIONS[..], more].concat();
    let mut last = Vec::new();
    let is_so = eventually(LIMIT, || {
        NotedCalls::clear();
        last = told();
        last == expected && NotedCalls::are_answered(&questions)
    });
    let notes = fs::read_to_string(NOTES).unwrap_or_default();
    assert!(is_so, "{when}: {last:?} after {notes}");
}

fn firewalld_is_opened_as_documented(node: &GuestNode) {
    assert_eq!(property("firewalld", "ActiveState"), "inactive");
    let driver = NativeDriver::set(node);
    let machine = OtherMachine::connect();
    let agent = agent();
    let mut task = server(&agent, &node.image());
    let connections = Connections {
        machine: &machine,
        agent: &agent,
        task: &task,
    };
    let started = agent.driver().start(&task.config);
    started.unwrap_or_else(|status| panic!("{status}"));
    connections.assert_come_in("before firewalld");
    connections.assert_leave("before firewalld");
    let before = tables();
    assert!(before.contains("intact"), "{before}");
    let firewalld = Firewalld::start();
    connections.assert_come_in("beside firewalld");
    connections.assert_do_not_leave("beside firewalld");
    assert_tables_are(&before, "beside firewalld");
    let noted = NotedCalls::begin();
    let rejected = format!("firewalld: the zone public rejects what comes from {BRIDGE}");
    let settings = ["getZoneSettings2 s public"];
    assert_told(&[&rejected], &settings, "beside firewalld");
    assert_is_opened(&connections, &before);
    drop(noted);
    drop(firewalld);
    connections.assert_leave("after firewalld");
    connections.assert_come_in("after firewalld");
    assert_tables_are(&before, "after firewalld");

    drop(connections);
    task.remove_cgroups();
    drop(agent);
    drop(machine);
    drop(driver);
    node.wait_ready();
    assert!(!tables().contains("intact"), "{}", tables());
    assert!(!has_bridge(), "the bridge is left");
}

/// Each way of docs/network.md lets the task reach the other machine, and leaves the daemon's tables and the published port as they were.
#[track_caller]
fn assert_is_opened(connections: &Connections<'_>, before: &str) {
    // iptables accepts the packet first; the chain of firewalld rejects it all the same.
    let accept = AcceptFirst::insert();
    connections.assert_do_not_leave("with an accept for iptables");
    drop(accept);

    // What no zone has is in the default one, and may go to the devices that were put into it, as NetworkManager puts uplinks.
    let uplink = |verb: &str| {
        let change = format!("--{verb}-interface={UPLINK}");
        run(&["firewall-cmd", "--zone=public", &change]);
    };
    uplink("add");
    connections.assert_leave("with the uplink in the default zone");
    uplink("remove");
    connections.assert_do_not_leave("without the uplink there");

    let source = format!("--add-source={SUBNET}");
    let trust = ["--zone=trusted", source.as_str()];
    run(&[&["firewall-cmd", "--permanent"][..], &trust].concat());
    connections.assert_do_not_leave("in the zone trusted, but not yet");
    run(&[&["firewall-cmd"][..], &trust].concat());
    connections.assert_leave("in the zone trusted");
    Firewalld::reload(RELOAD);
    let when = "in the zone trusted, after a reload";
    Firewalld::assert_zone("trusted", when);
    connections.assert_leave(when);
    connections.assert_come_in(when);
    assert_told(&[], &["getZoneSettings2 s trusted"], when);
    assert_tables_are(before, when);

    fs::remove_file(TRUSTED).expect("it was written");
    for (file, text) in [ZONE, POLICY] {
        fs::write(file, text).expect("root may");
    }
    for reload in [RELOAD, COMPLETE_RELOAD] {
        Firewalld::reload(reload);
        let when = format!("by a policy, after {reload}");
        Firewalld::assert_zone("switchyard", &when);
        connections.assert_leave(&when);
        connections.assert_come_in(&when);
        assert_told(&[], &[], &when);
        assert_tables_are(before, &when);
    }
}
