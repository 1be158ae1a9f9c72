//! Tests with the plugins of the containernetworking project, in a network namespace that stands for the
//! host.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::{Value, json};

use crate::attachment::{Attachment, Bandwidth, Capabilities, PortMapping, Protocol};
use crate::conf::NetworkList;
use crate::journal::Saved;
use crate::journalled::del_saved;
use crate::network::{CheckOutcome, Network};
use crate::plugin::{Limits, Plugins};
use crate::testing::attach_saved;

/// Directory of Debian's package containernetworking-plugins.
const BIN: &str = "/usr/lib/cni";

/// Runs `test` on a thread with namespaces of its own that stand for a host: what plugins create there ends
/// with the thread.
fn on_a_host(test: impl AsyncFnOnce(&Path) + Send) {
    for plugin in ["bridge", "host-local", "portmap", "bandwidth"] {
        let path = Path::new(BIN).join(plugin);
        assert!(
            path.is_file(),
            "{} is missing; install the package containernetworking-plugins",
            path.display()
        );
    }
    let iptables = ["/usr/sbin/iptables", "/sbin/iptables"]
        .iter()
        .any(|path| Path::new(path).exists());
    assert!(
        iptables,
        "iptables is missing; install the package iptables"
    );
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    let outcome = thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
                    .expect("these tests make namespaces and so must run as root");
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>).unwrap();
                // Plugins are started by this thread, and so run in its namespaces.
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(test(&dir));
            })
            .join()
    });
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Pins a new network namespace on a file.
fn new_netns(path: &Path) {
    fs::write(path, "").unwrap();
    thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                let own = Path::new("/proc/thread-self/ns/net");
                mount(
                    Some(own),
                    path,
                    None::<&Path>,
                    MsFlags::MS_BIND,
                    None::<&Path>,
                )
                .unwrap();
            })
            .join()
            .unwrap();
    });
}

fn inside<T: Send>(netns: &Path, work: impl FnOnce() -> T + Send) -> T {
    let file = fs::File::open(netns).unwrap();
    thread::scope(|scope| {
        scope
            .spawn(move || {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            })
            .join()
            .unwrap()
    })
}

/// Names of the network devices of the calling thread's namespace.
fn devices() -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect();
    names.sort();
    names
}

/// Addresses that host-local has reserved for a network, in a directory of the test's own.
fn reserved(dir: &Path, network: &str) -> Vec<IpAddr> {
    let files = fs::read_dir(dir.join("ipam").join(network)).unwrap();
    files
        .filter_map(|file| file.unwrap().file_name().to_str()?.parse().ok())
        .collect()
}

fn iptables_rules() -> String {
    let out = Command::new("iptables")
        .args(["-w", "-t", "nat", "-S"])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn network(list: &Value) -> (Network, Plugins) {
    let plugins = Plugins::new([PathBuf::from(BIN)], Limits::default());
    let list = NetworkList::parse(Path::new("test.conflist"), list.to_string().as_bytes()).unwrap();
    (Network::new(Arc::new(list), plugins.clone()), plugins)
}

/// A dual-stack bridge network with port mappings and bandwidth limits, as Kubernetes nodes have it.
fn bridge(dir: &Path, name: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": name, "plugins": [
        {
            "type": "bridge", "bridge": format!("{name}0"), "isGateway": true, "ipMasq": true,
            "ipam": {
                "type": "host-local", "dataDir": dir.join("ipam"),
                "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]})
}

fn attachment(id: &str, netns: &Path) -> Attachment {
    Attachment {
        container_id: id.to_owned(),
        netns: Some(netns.to_owned()),
        ifname: "eth0".to_owned(),
        args: vec![("IgnoreUnknown".to_owned(), "1".to_owned())],
        capabilities: Capabilities {
            port_mappings: vec![PortMapping {
                host_port: 8080,
                container_port: 80,
                protocol: Protocol::Tcp,
                host_ip: None,
            }],
            bandwidth: Some(Bandwidth {
                ingress_rate: 8_000_000,
                ingress_burst: 8_000_000,
                egress_rate: 8_000_000,
                egress_burst: 8_000_000,
            }),
            ..Capabilities::default()
        },
    }
}

#[test]
fn dual_stack_pod_is_reachable_and_leaves_nothing_behind() {
    on_a_host(async |dir| {
        let netns = dir.join("pod");
        new_netns(&netns);
        let (network, plugins) = network(&bridge(dir, "dual"));
        let journal = dir.join("journal.json");
        let pod = attachment("pod1", &netns);
        let made = attach_saved(&network, &journal, &pod).await.unwrap();

        let ips = made.pod_ips("eth0");
        assert_eq!(
            ips,
            [
                "10.77.0.2".parse::<IpAddr>().unwrap(),
                "fd77::2".parse().unwrap()
            ]
        );
        assert_eq!(inside(&netns, devices), ["eth0", "lo"]);
        assert_eq!(reserved(dir, "dual").len(), 2);
        assert!(iptables_rules().contains("8080"), "{}", iptables_rules());
        let listener = inside(&netns, || TcpListener::bind("10.77.0.2:80").unwrap());
        let timeout = Duration::from_secs(10);
        TcpStream::connect_timeout(&listener.local_addr().unwrap(), timeout).unwrap();
        // The limits are real: without them there would be no queueing device.
        assert!(
            devices().iter().any(|name| name.starts_with("bwp")),
            "{:?}",
            devices()
        );

        del_saved(&journal, &plugins, Some(&netns)).await.unwrap();
        assert_eq!(inside(&netns, devices), ["lo"]);
        assert!(reserved(dir, "dual").is_empty());
        assert_eq!(devices(), ["dual0", "lo"]);
        assert!(!iptables_rules().contains("8080"), "{}", iptables_rules());
        assert!(Saved::read(&journal).unwrap().is_none());
        del_saved(&journal, &plugins, Some(&netns)).await.unwrap();
        network.del(&pod, None).await.unwrap();
    });
}

#[test]
fn addresses_are_freed_without_namespace_and_result() {
    on_a_host(async |dir| {
        let netns = dir.join("pod");
        new_netns(&netns);
        let (network, plugins) = network(&bridge(dir, "lost"));
        let journal = dir.join("journal.json");
        attach_saved(&network, &journal, &attachment("pod1", &netns))
            .await
            .unwrap();
        // As after a kill just before the result was written, and a reboot.
        let text = fs::read_to_string(&journal).unwrap();
        let mut documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        fs::write(&journal, documents.next().unwrap().unwrap().to_string()).unwrap();
        nix::mount::umount(&netns).unwrap();

        del_saved(&journal, &plugins, None).await.unwrap();
        assert!(reserved(dir, "lost").is_empty());
        assert!(!iptables_rules().contains("8080"), "{}", iptables_rules());
    });
}

#[test]
fn failed_port_mapping_frees_the_address() {
    on_a_host(async |dir| {
        let netns = dir.join("pod");
        new_netns(&netns);
        let mut list = bridge(dir, "undo");
        list["plugins"][1]["backend"] = json!("no such backend");
        list["plugins"][1]["snat"] = json!("not a boolean");
        let (network, _) = network(&list);
        let journal = dir.join("journal.json");
        let error = attach_saved(&network, &journal, &attachment("pod1", &netns))
            .await
            .unwrap_err();
        let line = switchyard_linux::report(&error);
        assert!(line.contains("plugin portmap refused ADD"), "{line}");
        assert!(reserved(dir, "undo").is_empty());
        assert_eq!(inside(&netns, devices), ["lo"]);
        // This portmap cannot parse its configuration on DEL either, so the journal stays.
        assert_eq!(error.left_something(), journal.exists());
    });
}

#[test]
fn check_passes_until_the_attachment_is_gone() {
    on_a_host(async |dir| {
        let netns = dir.join("pod");
        new_netns(&netns);
        // Without portmap, whose CHECK looks for the rules of IPv4 also among those of IPv6.
        let mut list = bridge(dir, "check");
        list["plugins"].as_array_mut().unwrap().remove(1);
        let (network, _) = network(&list);
        let pod = attachment("pod1", &netns);
        let made = network.add(&pod).await.unwrap();
        assert_eq!(
            network.check(&pod, &made).await.unwrap(),
            CheckOutcome::Passed
        );
        network.del(&pod, Some(&made)).await.unwrap();
        assert!(network.check(&pod, &made).await.is_err());
    });
}
