//! Tests of the watch: of what it tells, and in network namespaces of their own of what wakes it.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use nix::sched::{CloneFlags, setns, unshare};
use serde_json::json;
use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_network::addresses::Holder;
use switchyard_network::driver::{
    AttachRequest, Attached, Attachment, BridgeDriver, DriverError, Limits, PublishedPort,
};
use switchyard_network::nft::{NftError, NftTables, Transport};

use super::super::NativeRequest;
use super::*;
use crate::base::config::NetworkConfig;

/// Limit for what is to happen, on a busy machine. A look at the tables that nobody asks for comes later.
const LONG: Duration = Duration::from_secs(30);
/// The port on which each container is reached.
const SERVED: u16 = 80;

#[test]
fn what_was_mended_is_told_although_another_family_failed() {
    use NftFamily::{Bridge, Ip4, Ip6};

    let failed = || {
        DriverError::Rules(NftError::Unanswered {
            doing: "restore the table".to_owned(),
        })
    };
    let whole = |family: NftFamily| (family, Repair::Whole);
    for (repairs, failure, mended) in [
        (vec![whole(Ip4), whole(Ip6)], Some(failed()), 2),
        (
            vec![(Ip4, Repair::Nothing), whole(Bridge)],
            Some(failed()),
            1,
        ),
        (vec![(Ip4, Repair::Nothing)], Some(failed()), 0),
        (vec![whole(Ip4)], None, 1),
        (vec![], None, 0),
    ] {
        let is_failure = failure.is_some();
        let case = format!("{repairs:?} {failure:?}");
        let look = TableLook::of(Restoration { repairs, failure }, Some(7));
        assert_eq!(look.mended.len(), mended, "{case}");
        assert_eq!(look.failure.is_some(), is_failure, "{case}");
        assert_eq!(look.own, Some(7), "{case}");
    }
}

#[test]
fn a_repair_is_told_by_what_it_has_changed() {
    let elements = |added, removed| Repair::Elements {
        added,
        ports: added,
        removed,
    };
    for (family, repair, expected) in [
        (NftFamily::Ip4, Repair::Nothing, None),
        (NftFamily::Ip6, Repair::Nothing, None),
        (
            NftFamily::Ip4,
            elements(2, 0),
            Some("family ip: 2 elements were added, 0 removed"),
        ),
        (
            NftFamily::Ip6,
            elements(0, 1),
            Some("family ip6: 0 elements were added, 1 removed"),
        ),
        (
            NftFamily::Ip4,
            Repair::Whole,
            Some("family ip: the table was missing, or had other sets, chains or rules"),
        ),
    ] {
        assert_eq!(mended_text(family, repair).as_deref(), expected);
    }
}

/// Runs `test` in a network namespace of its own, to which all threads belong that it starts, and which ends with them.
fn in_private_netns<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("these tests make network namespaces and so must run as root");
        run_program("ip", "iproute2", &["link", "set", "lo", "up"]);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(test());
    };
    if let Err(panic) = thread::scope(|scope| scope.spawn(run).join()) {
        std::panic::resume_unwind(panic);
    }
}

fn run_program(program: &str, package: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    let status =
        status.unwrap_or_else(|error| panic!("{program}: {error}; install the package {package}"));
    assert!(status.success(), "{program} {arguments:?}");
}

/// The configuration list of a bridge whose addresses are in this directory.
fn list(dir: &Path, name: &str, subnet: &str) -> cni::NetworkList {
    let bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "dataDir": dir, "ranges": [[{ "subnet": subnet }]] },
    });
    let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [bridge] });
    cni::NetworkList::parse(Path::new("list"), list.to_string().as_bytes()).unwrap()
}

/// The bridges of a gateway that keeps no table while nothing is attached.
fn bridges(dir: &Path) -> Arc<NativeBridges> {
    let own = list(dir, "switchyard0", "172.26.80.0/20");
    let bridges = NativeBridges::new(&NetworkConfig::default(), &own).unwrap();
    assert!(!bridges.is_chosen());
    Arc::new(bridges)
}

/// A container with a server on its port.
struct Container {
    /// It lives as long as this.
    _netns: File,
    server: UdpSocket,
    request: AttachRequest,
}

impl Container {
    fn new(id: &str, ports: Vec<PublishedPort>) -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let netns = thread::scope(|scope| scope.spawn(make).join().unwrap());
        let serve = || {
            setns(&netns, CloneFlags::CLONE_NEWNET).unwrap();
            UdpSocket::bind(("0.0.0.0", SERVED)).unwrap()
        };
        let server = thread::scope(|scope| scope.spawn(serve).join().unwrap());
        server
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let request = AttachRequest {
            holder: Holder::new(id, "eth0").unwrap(),
            netns: format!("/proc/self/fd/{}", netns.as_raw_fd()).into(),
            mac: None,
            addresses: Vec::new(),
            ports,
            limits: Limits::default(),
            is_pinned: false,
        };
        Self {
            _netns: netns,
            server,
            request,
        }
    }

    /// Returns whether what a client sends arrives here within the limit.
    fn is_reached(&self, client: &UdpSocket) -> bool {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            // Nobody may listen there yet.
            let _ = client.send(b"question");
            if self.server.recv(&mut [0; 16]).is_ok() {
                return true;
            }
        }
        false
    }

    fn attachment(&self, attached: &Attached) -> Attachment {
        let addresses = attached.addresses.iter().map(|one| one.address);
        Attachment {
            holder: self.request.holder.clone(),
            addresses: Some(addresses.collect()),
            ports: self.request.ports.clone(),
            pin: None,
        }
    }
}

/// A program that owns a table, which ends with it.
struct TableOwner(Child);

impl TableOwner {
    async fn start(table: &str) -> Self {
        let mut program = Command::new("nft")
            .arg("-i")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("nft: {error}; install the package nftables"));
        let line = format!("add table bridge {table} {{ flags owner; }}\n");
        let input = program.stdin.as_mut().unwrap();
        input.write_all(line.as_bytes()).unwrap();
        let owner = Self(program);
        let is_there = || {
            let tables = NftTables::list().unwrap();
            let mut tables = tables.iter();
            tables.any(|(family, name)| *family == NftFamily::Bridge && name.as_str() == table)
        };
        assert!(eventually(is_there).await, "nft has made no table");
        owner
    }
}

impl Drop for TableOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn eventually(is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        sleep(Duration::from_millis(20)).await;
    }
    false
}

/// Another program has a table of the bridges' name since before the watch has begun, which matters to nobody until something is attached.
#[test]
fn table_that_an_attachment_cannot_restore_is_looked_at_again_at_once() {
    in_private_netns(|| async {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        fs::create_dir_all(layout.all_sandbox_state()).unwrap();
        let bridges = bridges(dir.path());
        // The socket is there from now on: changes by it are known to be our own.
        bridges.tables.probe(&[NftFamily::Ip4]).unwrap();
        let owner = TableOwner::start(bridges.tables.name().as_str()).await;
        bridges.in_use.cancel();
        let watch = tokio::spawn({
            let (bridges, layout) = (Arc::clone(&bridges), layout.clone());
            async move { bridges.keep_tables(&layout).await }
        });
        assert!(eventually(|| bridges.knows_all.load(Ordering::Relaxed)).await);
        // It has looked by then, and looks by itself only after a minute.
        sleep(Duration::from_secs(1)).await;
        assert!(!bridges.tables.is_behind());
        let container = Container::new("a", Vec::new());
        let list = list(dir.path(), "swy-1", "10.7.0.0/24");
        let id = SandboxId::random();
        let asked = NativeRequest {
            driver: bridges.driver_of(&list).unwrap(),
            request: Arc::new(container.request.clone()),
            dirs: layout.sandbox(id),
        };
        // Nothing is said of the journal here.
        let journal = dir.path().join("journal");
        let _ = bridges
            .attach(&asked, cni::SpecVersion::V1_0_0, &journal)
            .await;
        assert!(bridges.tables.is_behind());
        drop(owner);
        let is_mended = eventually(|| !bridges.tables.is_behind()).await;
        assert!(is_mended, "nobody has looked at the table again");
        watch.abort();
    });
}

/// A predecessor was killed behind its answer, and the port is published on another bridge before its own has a container again.
#[test]
fn watch_removes_what_predecessors_have_left_on_bridges_of_others() {
    in_private_netns(|| async {
        let dir = tempfile::tempdir().unwrap();
        let port = PublishedPort {
            protocol: Transport::Udp,
            at: None,
            port: 8080,
            to_port: SERVED,
        };
        let former_list = list(dir.path(), "swy-1", "10.7.0.0/24");
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect("127.0.0.1:8080").unwrap();

        let predecessor: Arc<BridgeDriver> = bridges(dir.path()).driver_of(&former_list).unwrap();
        let former = Container::new("former", vec![port]);
        let attached = predecessor.attach(&former.request).unwrap();
        assert!(former.is_reached(&client));
        predecessor.detach(&former.attachment(&attached)).unwrap();

        let bridges = bridges(dir.path());
        bridges.driver_of(&former_list).unwrap();
        bridges.in_use.cancel();
        let watch = tokio::spawn({
            let bridges = Arc::clone(&bridges);
            async move { bridges.forget_past_flows().await }
        });
        let next = Container::new("next", vec![port]);
        let next_list = list(dir.path(), "swy-2", "10.8.0.0/24");
        let reached = tokio::task::spawn_blocking(move || {
            let driver = bridges.driver_of(&next_list).unwrap();
            driver.attach(&next.request).unwrap();
            next.is_reached(&client)
        });
        assert!(
            reached.await.unwrap(),
            "the client is led to where the port led before"
        );
        watch.abort();
    });
}
