//! Starts of the daemon on bad disks after a kill.

use std::time::Duration;

use switchyard_tests::bad_disks::{FilledDisk, ReadOnlyDisk};
use switchyard_tests::cri::Cri;
use switchyard_tests::host::eventually;

use super::fixture::{KillFixture, KillPoint, LIMIT};

/// Time for a call on a disk that refuses it.
const SOON: Duration = Duration::from_secs(40);

/// Names of bad disks in messages, and of the containers that end on them.
const DISKS: [&str; 2] = ["full", "read-only"];

/// Two containers, of which one ends on a full state disk, and the other on a read-only one.
pub(super) struct BadDisks<'f> {
    fixture: &'f KillFixture,
    cri: Cri,
    containers: [String; 2],
}

/// The containers after their end.
pub(super) struct EndedContainers<'f>(BadDisks<'f>);

impl<'f> BadDisks<'f> {
    pub(super) fn new(fixture: &'f KillFixture) -> Self {
        let containers = DISKS.map(|name| fixture.start_beside_bystander(name));
        Self {
            fixture,
            cri: fixture.node.cri().with_timeout(SOON),
            containers,
        }
    }

    /// No daemon runs, before and after it.
    #[track_caller]
    pub(super) fn run(self, at: KillPoint) -> EndedContainers<'f> {
        let Self {
            fixture,
            cri: _,
            containers,
        } = &self;
        let state = fixture.node.root().state();
        let filling = FilledDisk::bytes(&state);
        self.ends_and_removes(at, DISKS[0], &containers[0], || filling.refill());
        drop(filling);
        let read_only = ReadOnlyDisk::with_content_of(&state);
        self.ends_and_removes(at, DISKS[1], &containers[1], || {});
        drop(read_only);
        EndedContainers(self)
    }

    /// A daemon serves: it lists all, runs a command, ends a container, and removes it or says why it cannot.
    #[track_caller]
    fn ends_and_removes(&self, at: KillPoint, disk: &str, container: &str, refill: impl Fn()) {
        let Self {
            fixture,
            cri,
            containers: _,
        } = self;
        let bystander = fixture.bystander();
        fixture.node.daemon().spawn();
        let mut listed = Vec::new();
        let serves = eventually(LIMIT, || {
            listed = cri.containers().unwrap_or_default();
            !listed.is_empty()
        });
        let log = || fixture.node.daemon().tail();
        assert!(
            serves,
            "{at:?}: nothing is listed on a disk that is {disk}\n{}",
            log()
        );
        for id in [bystander, container] {
            assert!(
                listed.iter().any(|known| known.id == id),
                "{at:?}, {disk}: {id} is not in {listed:#?}"
            );
        }
        cri.pods().expect("they can be listed");
        cri.list_images().expect("they can be listed");
        assert_eq!(
            cri.sh(bystander, "echo reached"),
            "reached",
            "{at:?}, {disk}"
        );
        refill();
        let stopped = cri.stop(container, 0);
        assert!(stopped.is_ok(), "{at:?}, {disk}: {stopped:?}\n{}", log());
        let status = cri.status(container).expect("it has a status");
        assert_eq!(status.exit_code, 137, "{at:?}, {disk}: {status:?}");
        refill();
        if let Err(refused) = cri.remove(container) {
            let reason = refused.message().to_lowercase();
            let says_why = ["no space left on device", "read-only file system"]
                .iter()
                .any(|why| reason.contains(why));
            assert!(says_why, "{at:?}, {disk}: {refused:?}\n{}", log());
        }
        fixture.node.daemon().kill9();
    }
}

impl EndedContainers<'_> {
    /// They are removed, or ended and can be removed.
    #[track_caller]
    pub(super) fn assert_removable(self, at: KillPoint) {
        let BadDisks {
            fixture: _,
            cri,
            containers,
        } = self.0;
        for container in containers {
            if let Ok(status) = cri.status(&container) {
                assert_eq!(status.exit_code, 137, "{at:?}: {status:?}");
            }
            cri.remove(&container)
                .unwrap_or_else(|refused| panic!("{at:?}: {refused:?}"));
        }
    }
}
