//! A node whose daemon and containerd are monitored while images are pulled.

use super::*;

/// A node whose daemon and containerd are monitored: neither may be restarted, and the daemon's memory must
/// not grow.
pub(super) struct WatchedNode {
    pub(super) node: TestNode,
    pub(super) daemon: i32,
    pub(super) containerd: i32,
}

impl WatchedNode {
    pub(super) fn start(conf: &str) -> Self {
        let node = TestNode::start_with(conf, |_| {});
        let daemon = node.daemon().pid();
        let containerd = node.containerd_pid().as_raw();
        // The node's own image has been pulled.
        node.registry().proxy().clear_requests();
        Self {
            node,
            daemon,
            containerd,
        }
    }

    /// Does something hostile. While it lasts the daemon may take `most` bytes more than before it.
    #[track_caller]
    pub(super) fn during<T>(&self, most: u64, work: impl FnOnce(&TestNode) -> T) -> T {
        // Resets the peak to the current value.
        fs::write(format!("/proc/{}/clear_refs", self.daemon), "5")
            .expect("the daemon lives, and the test is root");
        let before = peak(self.daemon);
        let done = work(&self.node);
        let grown = peak(self.daemon).saturating_sub(before);
        assert!(
            grown <= most,
            "the daemon took {grown} bytes more, {most} are allowed"
        );
        assert_eq!(
            self.node.daemon().pid(),
            self.daemon,
            "the daemon is another process"
        );
        assert_eq!(
            self.node.containerd_pid().as_raw(),
            self.containerd,
            "containerd is another process"
        );
        assert_eq!(self.node.daemon().get("/readyz").0, 200);
        done
    }

    /// Pulls an image that must be rejected with one of these codes after at most `most` bytes; nothing of it
    /// may remain.
    #[track_caller]
    pub(super) fn refused(&self, most: u64, name: &str, codes: &[Code]) -> Status {
        let status = self.refused_beside_others(most, name, codes);
        self.node.registry().proxy().clear_faults();
        status
    }

    /// The same, with the faults that are planned for other images left in place.
    #[track_caller]
    pub(super) fn refused_beside_others(&self, most: u64, name: &str, codes: &[Code]) -> Status {
        let reference = self.node.registry().reference(name);
        let answer = self.during(most, |node| {
            node.cri().with_timeout(SOON).pull(&reference, None)
        });
        let status = answer.expect_err("it is hostile");
        assert!(codes.contains(&status.code()), "{name}: {status}");
        assert!(
            status.message().len() < 2000,
            "{name}: {} bytes are reported",
            status.message().len()
        );
        assert!(
            !status.message().contains(char::is_control),
            "{name}: {:?}",
            status.message()
        );
        assert_eq!(
            self.node.cri().image(&reference).expect("it is asked for"),
            None
        );
        let clean = eventually(SOON, || self.node.leak_scan().findings.is_empty());
        assert!(clean, "{:#?}", self.node.leak_scan().findings);
        status
    }

    /// Has the next requests for `part` answered so.
    pub(super) fn plan(&self, part: &str, fault: &RegistryFault) {
        for _ in 0..MORE_THAN_RETRIES {
            self.node.registry().proxy().add_fault(part, fault.clone());
        }
    }

    /// Serves this as the manifest of `hostile:tag`, without a registry's checks.
    pub(super) fn serve(&self, tag: &str, manifest: &Value) {
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let body = manifest.to_string().into_bytes();
        self.plan(
            &format!("/manifests/{tag}"),
            &answer(200, &[("Content-Type", kind)], &body),
        );
    }

    /// Number of requests for blobs.
    pub(super) fn blobs(&self) -> usize {
        self.node.registry().proxy().count("/blobs/")
    }
}

/// The most memory that a process has had, in bytes.
fn peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("the kernel counts it");
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .expect("it is a number");
    kib * 1024
}
