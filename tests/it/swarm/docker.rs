//! A real dockerd that is in no swarm, with its bridge and its rules of iptables, beside the daemon on a node of its own: what reaches what, and
//! that neither changes what the other has made. All of it is in a network namespace that is pinned in the directory of the test: what a killed
//! test leaves is swept with that directory by the next run.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::host::{self, connect_machine, eventually, inside, run, within};
use switchyard_tests::image::busybox_layer;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::bridges::rules;
use super::services::registry;

/// The address of the node on the network of another machine, and of that machine.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// Ports at which each container and the other machine serve, and at which dockerd's container serves what it does not publish.
const SERVED: u16 = 8000;
const UNPUBLISHED: u16 = 8001;
/// The published ports. No other program has them in this network namespace.
const OURS: u16 = 8088;
const THEIRS: u16 = 8089;
/// Time for what should arrive, on a busy machine, and for a datagram.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Another machine, which serves its name. Dropping it ends that; it goes with the directory of the node.
struct Remote {
    netns: PathBuf,
    server: Child,
}

/// A container, by its network namespace and its address.
struct Container {
    netns: PathBuf,
    address: Ipv4Addr,
}

/// A dockerd, and its container.
struct Docker {
    number: usize,
    container: Container,
    /// True if others reach ports of its containers that are not published, if the policy of FORWARD lets them: before version 28.
    is_open: bool,
}

// === impl Remote ===

impl Remote {
    /// Connects it to the node.
    fn beside(cluster: &SwarmCluster) -> Self {
        let netns = cluster.dir().join("remote");
        connect_machine(cluster.netns(), "uplink", &netns, [NODE, REMOTE]);
        let pages = cluster.dir().join("pages");
        fs::create_dir(&pages).expect("the directory of a test can be written");
        fs::write(pages.join("index.html"), "remote\n").expect("it was just made");
        let server = inside(&netns, &prereq::require_static_busybox())
            .args(["httpd", "-f", "-p", &SERVED.to_string(), "-h"])
            .arg(&pages)
            .stdin(Stdio::null())
            .spawn();
        let server = server.expect("it was found, so it starts");
        Self { netns, server }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

// === impl Container ===

impl Container {
    fn of(pid: &str, address: &str) -> Self {
        Self {
            netns: Path::new("/proc").join(pid).join("ns/net"),
            address: address.parse().expect("it is an address"),
        }
    }
}

// === impl Docker ===

impl Docker {
    /// Starts a dockerd on a node that does not forward, where it sets the policy of FORWARD to DROP, and a container with a published port.
    fn start(cluster: &mut SwarmCluster) -> Self {
        let forward_nothing = || fs::write("/proc/sys/net/ipv4/ip_forward", "0");
        let written = cluster.within(forward_nothing).join();
        written
            .expect("the thread ends")
            .expect("root may write it");
        let number = cluster.add_with_bridge();
        let layer = cluster.dir().join("layer.tar.gz");
        fs::write(&layer, busybox_layer().bytes).expect("the directory of a test can be written");
        let layer = layer.to_str().expect("the path is ASCII");
        cluster.docker_on(number, &["import", layer, "busybox"]);
        let tcp = format!("0.0.0.0:{THEIRS}:{SERVED}");
        let udp = format!("{tcp}/udp");
        let script = format!("httpd -p {UNPUBLISHED} -h /tmp; {}", serve("theirs"));
        let options = ["run", "--detach", "--name", "theirs"];
        // A shell is not ended by SIGTERM as the first process of a container.
        let more = [
            "--stop-signal",
            "KILL",
            "--publish",
            &tcp,
            "--publish",
            &udp,
        ];
        let command = ["busybox", "sh", "-c", script.as_str()];
        cluster.docker_on(number, &[&options[..], &more, &command].concat());
        let version = ["version", "--format", "{{.Server.Version}}"];
        let version = cluster.docker_on(number, &version);
        let major: Option<u32> = version.split('.').next().and_then(|word| word.parse().ok());
        let major = major.unwrap_or_else(|| panic!("{version:?} is no version"));
        Self {
            number,
            container: their_container(cluster, number),
            is_open: major < 28,
        }
    }

    /// Starts it again, with the container, after which it has made its rules once more.
    fn restart(&mut self, cluster: &mut SwarmCluster) {
        cluster.end_member(self.number, Signal::SIGTERM);
        cluster.start_member(self.number);
        cluster.docker_on(self.number, &["start", "theirs"]);
        self.container = their_container(cluster, self.number);
    }
}

/// The container of a dockerd, which runs.
fn their_container(cluster: &SwarmCluster, number: usize) -> Container {
    let format = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    let shown = cluster.docker_on(number, &["inspect", "--format", format, "theirs"]);
    let (pid, address) = shown.trim().split_once(' ').expect("these are two words");
    Container::of(pid, address)
}

/// The script of a container that serves this name.
fn serve(name: &str) -> String {
    format!("echo {name} > /tmp/index.html; exec httpd -f -p {SERVED} -h /tmp")
}

/// Returns what somebody in this network namespace is served there.
fn ask(netns: &Path, to: SocketAddr) -> Option<String> {
    let client = move || host::ask(to, b"GET / HTTP/1.0\r\n\r\n");
    let answer = within(netns, client).join().expect("the thread ends")?;
    answer.lines().last().map(str::to_owned)
}

#[track_caller]
fn assert_served(what: &str, netns: &Path, to: (Ipv4Addr, u16), name: &str) {
    let is_served = || ask(netns, to.into()).as_deref() == Some(name);
    assert!(eventually(LIMIT, is_served), "{what}: {to:?} is not served");
}

/// A socket in a network namespace.
fn socket(netns: &Path, port: u16) -> UdpSocket {
    let bind = move || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    let bound = within(netns, bind).join().expect("the thread ends");
    let socket = bound.expect("nobody else has it");
    let limited = socket.set_read_timeout(Some(PAUSE));
    limited.expect("it is a socket");
    socket
}

/// Checks that datagrams of somebody in a network namespace reach a server in another one, and that the answers come from where they were sent.
#[track_caller]
fn assert_answered(what: &str, netns: &Path, to: (Ipv4Addr, u16), server: &Path) {
    let server = socket(server, SERVED);
    let client = socket(netns, 0);
    let mut buffer = [0; 16];
    let is_answered = || {
        // What cannot be sent yet is sent again.
        let _ = client.send_to(b"question", to);
        let Ok((_, sender)) = server.recv_from(&mut buffer) else {
            return false;
        };
        let _ = server.send_to(b"answer", sender);
        let answer = client.recv_from(&mut buffer);
        answer.is_ok_and(|(_, source)| source == SocketAddr::from(to))
    };
    assert!(
        eventually(LIMIT, is_answered),
        "{what}: {to:?} does not answer"
    );
}

/// Checks what holds for a task of ours and a container of dockerd, whichever of both was there first.
#[track_caller]
fn assert_ways(
    cluster: &SwarmCluster,
    worker: &SwarmWorker,
    remote: &Remote,
    ours: &Container,
    docker: &Docker,
) {
    let [policy, ..] = &forward(cluster)[..] else {
        panic!("FORWARD has no policy")
    };
    assert_eq!(policy, "-P FORWARD DROP");
    let theirs = &docker.container;
    let machine = ("remote", &remote.netns);
    let task = ("ours", &ours.netns);
    let container = ("theirs", &theirs.netns);
    for ((from, client), to, (name, server)) in [
        (task, (REMOTE, SERVED), machine),
        (container, (REMOTE, SERVED), machine),
        (machine, (NODE, OURS), task),
        (machine, (NODE, THEIRS), container),
        (task, (NODE, THEIRS), container),
        (container, (NODE, OURS), task),
    ] {
        assert_served(from, client, to, name);
        assert_answered(from, client, to, server);
    }
    let by_route = (theirs.address, UNPUBLISHED);
    assert_served("itself", &theirs.netns, by_route, "theirs");
    if docker.is_open {
        // Only the policy protects it.
        assert_served("ours, by route", &ours.netns, by_route, "theirs");
    } else {
        assert_eq!(ask(&ours.netns, by_route.into()), None);
    }
    let by_route = (ours.address, SERVED);
    // Without this the policy of FORWARD closes it, whatever the daemon does.
    let accept = format!("FORWARD -o {} -j ACCEPT", worker.root().bridge().bridge());
    with_rule(cluster, &accept, || {
        assert_eq!(ask(&theirs.netns, by_route.into()), None, "direct_routing");
    });
}

/// Does something while this rule is the first one of its chain.
#[track_caller]
fn with_rule(cluster: &SwarmCluster, rule: &str, work: impl FnOnce()) {
    let iptables = prereq::require("iptables", "iptables");
    let edit = |action: &str| {
        let words = format!("-w 20 {action} {rule}");
        run(cluster.inside(&iptables).args(words.split(' ')));
    };
    edit("-I");
    work();
    edit("-D");
}

/// The rules of FORWARD of iptables on the node, with its policy first.
fn forward(cluster: &SwarmCluster) -> Vec<String> {
    let iptables = prereq::require("iptables", "iptables");
    let listed = run(cluster.inside(&iptables).args(["-S", "FORWARD"]));
    listed.lines().map(str::to_owned).collect()
}

/// All rules of iptables on the node in their order, save those of the daemon, and without the counters of chains.
fn rules_of_others(cluster: &SwarmCluster) -> Vec<String> {
    let save = prereq::require("iptables-save", "iptables");
    let saved = run(&mut cluster.inside(&save));
    let lines = saved
        .lines()
        .filter(|line| !line.starts_with('#') && !is_of_daemon(line));
    let without_counters = lines.map(|line| line.split(" [").next().unwrap_or_default());
    without_counters.map(str::to_owned).collect()
}

fn is_of_daemon(rule: &str) -> bool {
    rule.contains("--comment switchyard")
}

/// A task of Nomad on the gateway's own bridge, which serves a published port.
fn our_task(worker: &SwarmWorker, agent: &Agent, image: &str) -> (TaskSetup, Container) {
    let config = json!({
        "image": image, "command": "sh", "args": ["-c", serve("ours")], "ports": ["http"],
    });
    let mut task = TaskSetup::new(worker.root(), agent, "web", &config);
    let published = nomad::PortMapping {
        label: "http".into(),
        value: OURS.into(),
        to: SERVED.into(),
        host_ip: NODE.to_string(),
    };
    let resources = task.config.resources.as_mut().expect("it has some");
    resources.ports.push(published);
    let started = agent.driver().start(&task.config).expect("it starts");
    let network = started.network_override.expect("it has a network");
    let pids = worker.tasks().into_iter().filter_map(|task| task.pid);
    let pids: Vec<String> = pids.map(|pid| pid.to_string()).collect();
    let [pid] = &pids[..] else {
        panic!("one task runs: {pids:?}")
    };
    let container = Container::of(pid, &network.addr);
    (task, container)
}

/// The configuration of a node that begins with this version, so that its bridge is closed but for published ports.
fn new_node(root: &PrivateRoot) -> String {
    fs::remove_file(root.network_defaults()).expect("the root has written it");
    "[network.bridge]\nipv6 = false\n".to_owned()
}

/// Closes what only the policy protected, as docs/network.md says it, and opens it again.
#[track_caller]
fn close_and_open(cluster: &SwarmCluster, worker: &SwarmWorker, ours: &Container, docker: &Docker) {
    let theirs = &docker.container;
    let by_route = (theirs.address, UNPUBLISHED);
    let bridge = worker.root().bridge().bridge();
    let rule = format!(
        "DOCKER-USER -i {bridge} -o docker0 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    );
    with_rule(cluster, &rule, || {
        assert_eq!(ask(&ours.netns, by_route.into()), None, "{rule}");
        assert_served("their port", &ours.netns, (NODE, THEIRS), "theirs");
        assert_served("our port", &theirs.netns, (NODE, OURS), "ours");
    });
    if docker.is_open {
        assert_served("opened", &ours.netns, by_route, "theirs");
    }
}

/// Returns what a dockerd would change of the machine itself: its rules of docker, and whether its bridges may ask iptables.
fn of_machine() -> (Vec<String>, bool) {
    let has_filter = Path::new("/proc/sys/net/bridge").exists();
    (rules("DOCKER"), has_filter)
}

/// A node with both, one of which was there before the other.
fn stand_beside(docker_is_first: bool) {
    let untouched = of_machine();
    let mut cluster = SwarmCluster::with_managers(0);
    let remote = Remote::beside(&cluster);
    let (_registry, image) = registry(&cluster);
    let first = docker_is_first.then(|| Docker::start(&mut cluster));
    let alone = rules_of_others(&cluster);
    let mut worker = SwarmWorker::start(&cluster, new_node);
    let agent = Agent::start(worker.root(), &json!({}));
    let (mut task, ours) = our_task(&worker, &agent, &image);
    assert_served("alone", &remote.netns, (NODE, OURS), "ours");
    assert_served("alone", &ours.netns, (REMOTE, SERVED), "remote");
    assert_eq!(rules_of_others(&cluster), alone);
    let mut docker = first.unwrap_or_else(|| {
        let docker = Docker::start(&mut cluster);
        // The daemon looks once a minute whether somebody has set a policy, and whenever it starts.
        worker.daemon().restart();
        docker
    });
    assert_ways(&cluster, &worker, &remote, &ours, &docker);
    close_and_open(&cluster, &worker, &ours, &docker);

    docker.restart(&mut cluster);
    let beside = rules_of_others(&cluster);
    assert_ways(&cluster, &worker, &remote, &ours, &docker);
    let listed = forward(&cluster);
    let count = listed.iter().filter(|rule| is_of_daemon(rule)).count();
    assert_eq!(count, 3, "{listed:#?}");

    let agent = Agent::start(worker.root(), &json!({}));
    task.end(&agent.driver());
    drop(agent);
    worker.daemon().terminate();
    let config = worker.root().config();
    let program = worker.daemon().program();
    let clear = ["network", "clear", "--config"];
    run(cluster.inside(&program).args(clear).arg(config));
    assert_eq!(rules_of_others(&cluster), beside);
    let listed = forward(&cluster);
    assert!(!listed.iter().any(|rule| is_of_daemon(rule)), "{listed:#?}");
    let nft = prereq::require("nft", "nftables");
    let tables = run(cluster.inside(&nft).args(["list", "tables"]));
    assert!(!tables.contains("switchyard"), "{tables}");
    let theirs = &docker.container.netns;
    assert_served("theirs, out", theirs, (REMOTE, SERVED), "remote");
    assert_served("their port", &remote.netns, (NODE, THEIRS), "theirs");
    cluster.docker_on(docker.number, &["rm", "--force", "theirs"]);
    assert_eq!(of_machine(), untouched);
}

#[test]
fn task_reaches_and_is_reached_where_docker_has_closed_what_is_forwarded() {
    stand_beside(true);
}

#[test]
fn task_reaches_and_is_reached_where_docker_is_started_after_it() {
    stand_beside(false);
}
