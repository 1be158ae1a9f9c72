//! The test bed: one containerd with its CRI plugin enabled, our daemon on the same containerd, and a
//! registry.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::eventually;
use switchyard_tests::image::busybox;
use switchyard_tests::leak_scan::{self, LeakScan};
use switchyard_tests::prereq::{self, CNI_BIN_DIR};
use switchyard_tests::registry::Registry;
use switchyard_tests::root::PrivateRoot;

use crate::failure::Failure;
use crate::footprint::RUNC;
use crate::pair::Pair;
use crate::pause;
use crate::side::{Side, channel};
use crate::timed::TimedPrograms;

/// The containerd namespace of the CRI plugin, which is not configurable.
pub(crate) const THEIR_NAMESPACE: &str = "k8s.io";
/// The containerd namespace of our daemon.
pub(crate) const OUR_NAMESPACE: &str = "switchyard-bench";
/// The image that containers run.
const IMAGE: &str = "bench/busybox:1";
/// The image of pause containers.
const PAUSE: &str = "bench/pause:1";
/// Limit for containerd to listen.
const START: Duration = Duration::from_secs(30);

/// Both sides, and what they work on. Dropping it ends and removes everything.
#[derive(Debug)]
pub(crate) struct TestBed {
    /// Containerd's own CRI plugin.
    pub(crate) theirs: Side,
    /// Switchyard.
    pub(crate) ours: Side,
    /// The daemon.
    pub(crate) daemon: Daemon,
    /// The containerd of both.
    pub(crate) containerd: Containerd,
    /// The registry that both pull from.
    pub(crate) registry: Registry,
    /// The image that containers run.
    pub(crate) image: String,
    /// The programs of each side, if they are timed.
    pub(crate) timed: Option<Pair<TimedPrograms>>,
    // Last: its drop removes what the others live in.
    /// The place of it all.
    pub(crate) root: PrivateRoot,
}

/// A containerd of the benchmark's own.
#[derive(Debug)]
pub(crate) struct Containerd {
    child: Child,
    /// Its directory, with its configuration and its log.
    dir: PathBuf,
    /// The directory of its persistent state.
    pub(crate) root: PathBuf,
    /// The socket on which it listens, for CRI as well.
    pub(crate) socket: PathBuf,
    /// The address of its metrics, if they are enabled.
    pub(crate) metrics: Option<SocketAddr>,
}

// === impl TestBed ===

impl TestBed {
    /// Starts everything and lets both sides pull the image. If it is to be `timed`, calls of containerd and
    /// runs of programs are counted. Our daemon has these settings as well, which begin with a section.
    pub(crate) async fn start(timed: bool, more: &str) -> Result<Self, Failure> {
        let root = PrivateRoot::new();
        let timed = if timed {
            let make = |name: &str| TimedPrograms::make(root.path().join(name));
            Some(Pair {
                theirs: make("timed-theirs")?,
                ours: make("timed-ours")?,
            })
        } else {
            None
        };
        let registry = Registry::start();
        registry.push(IMAGE, &busybox().build());
        registry.push(PAUSE, &pause::build(root.path())?);
        let image = registry.reference(IMAGE);

        let containerd = Containerd::start(
            &root,
            &registry.reference(PAUSE),
            timed.as_ref().map(|pair| &pair.theirs),
        )?;
        let core = channel(&containerd.socket).await?;
        let mut theirs = Side::connect(
            "containerd CRI",
            &containerd.socket,
            THEIR_NAMESPACE,
            core.clone(),
        )
        .await?;
        theirs.wait_ready().await?;

        let mut settings = format!(
            "[containerd]\nmode = \"external\"\naddress = {:?}\nnamespace = {OUR_NAMESPACE:?}\n",
            containerd.socket
        );
        if let Some(Pair { ours, .. }) = &timed {
            settings.push_str(&format!(
                "[containerd.runtimes.runc]\nbinary = {:?}\n[network]\nbin_dirs = [{:?}]\n",
                ours.runc(),
                ours.plugins()
            ));
        }
        settings.push_str(more);
        let daemon = Daemon::start(&root, &settings);
        let mut ours = Side::connect("Switchyard", &root.cri_socket(), OUR_NAMESPACE, core).await?;
        ours.wait_ready().await?;

        theirs.pull(&registry.reference(PAUSE)).await?;
        theirs.pull(&image).await?;
        ours.pull(&image).await?;
        Ok(Self {
            theirs,
            ours,
            daemon,
            containerd,
            registry,
            image,
            timed,
            root,
        })
    }

    /// Lists what the pods of both sides left behind, after the last one is gone.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut found = LeakScan::of(&self.root).findings;
        for namespace in [THEIR_NAMESPACE, OUR_NAMESPACE] {
            let findings = leak_scan::in_containerd(&self.containerd.socket, namespace);
            found.extend(
                findings
                    .into_iter()
                    .map(|finding| format!("{namespace}: {finding}")),
            );
        }
        found
    }
}

// === impl Containerd ===

impl Containerd {
    fn start(
        root: &PrivateRoot,
        pause: &str,
        timed: Option<&TimedPrograms>,
    ) -> Result<Self, Failure> {
        let dir = root.path().join("containerd");
        fs::create_dir_all(&dir)?;
        let socket = dir.join("containerd.sock");
        let metrics = timed.map(|_| free_address()).transpose()?;
        let file = dir.join("config.toml");
        let mut text = config(root, &dir, &socket, pause, timed);
        if let Some(address) = metrics {
            text.push_str(&format!(
                "[metrics]\naddress = \"{address}\"\ngrpc_histogram = true\n"
            ));
        }
        fs::write(&file, text)?;
        let containerd = Self {
            child: launch(&dir)?,
            root: dir.join("root"),
            dir,
            socket,
            metrics,
        };
        if !eventually(START, || containerd.socket.exists()) {
            let log = fs::read_to_string(containerd.dir.join("containerd.log")).unwrap_or_default();
            return Err(
                format!("containerd does not listen after {START:?}; its log:\n{log}").into(),
            );
        }
        Ok(containerd)
    }

    /// The id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill9(&mut self) {
        // It fails only when the process has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, after its end, without waiting for it.
    pub(crate) fn spawn(&mut self) -> Result<(), Failure> {
        self.child = launch(&self.dir)?;
        Ok(())
    }
}

fn launch(dir: &Path) -> Result<Child, Failure> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("containerd.log"))?;
    let child = Command::new(prereq::require("containerd", "containerd"))
        .arg("--config")
        .arg(dir.join("config.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    Ok(child)
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.kill9();
        // runc's notes of our pods; empty unless the benchmark was interrupted.
        let _ = fs::remove_dir(Path::new(RUNC).join(OUR_NAMESPACE));
    }
}

/// Its configuration. The CRI plugin gets what our daemon has: the network, the runtime, low ports and pings
/// for every pod. The rest lets it run where capabilities or controllers are missing.
fn config(
    root: &PrivateRoot,
    dir: &Path,
    socket: &Path,
    pause: &str,
    timed: Option<&TimedPrograms>,
) -> String {
    let bin_dir = timed.map_or(Path::new(CNI_BIN_DIR), TimedPrograms::plugins);
    let runc = timed.map_or(PathBuf::from("runc"), TimedPrograms::runc);
    format!(
        "version = 2\n\
         root = {root_dir:?}\n\
         state = {state_dir:?}\n\
         [grpc]\naddress = {socket:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n\
         sandbox_image = {pause:?}\n\
         stream_server_address = \"127.0.0.1\"\n\
         stream_server_port = \"0\"\n\
         netns_mounts_under_state_dir = true\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         disable_hugetlb_controller = true\n\
         tolerate_missing_hugetlb_controller = true\n\
         enable_unprivileged_ports = true\n\
         enable_unprivileged_icmp = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\n\
         bin_dir = {bin_dir:?}\n\
         conf_dir = {conf_dir:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\".registry]\n\
         config_path = {certs:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n\
         snapshotter = \"overlayfs\"\n\
         default_runtime_name = \"runc\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n\
         BinaryName = {runc:?}\n",
        root_dir = dir.join("root"),
        state_dir = dir.join("state"),
        conf_dir = root.cni_conf(),
        certs = root.certs(),
    )
}

/// A port that was free a moment ago: containerd does not say which one it took when it may choose.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
