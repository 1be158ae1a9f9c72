//! Tests of changes that a kubelet or an operator makes to the directory.

use std::os::unix::net::UnixListener;

use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;

/// Limit for noticing a change; without an inotify event, the next poll notices it.
const SOON: Duration = Duration::from_secs(10);

struct Watching {
    dir: TempDir,
    kubelets: Kubelets,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watching {
    /// Watches a directory below a temporary one.
    fn begin(below: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (sender, kubelets) = watch::channel(None);
        let task = tokio::spawn(follow(dir.path().join(below), sender, BTreeMap::new));
        Self {
            dir,
            kubelets,
            task,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn generation(&mut self, after: u64) -> u64 {
        let newer =
            |kubelet: &Option<Kubelet>| kubelet.as_ref().is_some_and(|k| k.generation > after);
        let seen = timeout(SOON, self.kubelets.wait_for(newer))
            .await
            .expect("it is seen")
            .unwrap();
        seen.as_ref().unwrap().generation
    }

    async fn gone(&mut self) {
        timeout(SOON, self.kubelets.wait_for(Option::is_none))
            .await
            .expect("it is seen")
            .unwrap();
    }
}

#[tokio::test]
async fn each_socket_that_is_made_is_another_kubelet() {
    let mut watching = Watching::begin("");
    let socket = watching.path(KUBELET);
    let mut generation = 0;
    for _ in 0..20 {
        let _listener = UnixListener::bind(&socket).unwrap();
        generation = watching.generation(generation).await;
        fs::remove_file(&socket).unwrap();
        watching.gone().await;
    }
    assert_eq!(generation, 20);
}

#[tokio::test]
async fn a_socket_in_the_place_of_another_is_another_kubelet() {
    let mut watching = Watching::begin("");
    let socket = watching.path(KUBELET);
    let new = watching.path("new.sock");
    let _first = UnixListener::bind(&socket).unwrap();
    let first = watching.generation(0).await;
    // Immediately, because then a poll alone may find the same inode number and timestamp.
    fs::remove_file(&socket).unwrap();
    let _second = UnixListener::bind(&socket).unwrap();
    let second = watching.generation(first).await;
    let _third = UnixListener::bind(&new).unwrap();
    fs::rename(&new, &socket).unwrap();
    watching.generation(second).await;
}

#[tokio::test]
async fn what_is_no_socket_is_no_kubelet_and_other_names_are_not_either() {
    let mut watching = Watching::begin("");
    fs::write(watching.path(KUBELET), "").unwrap();
    let _other = UnixListener::bind(watching.path("other.sock")).unwrap();
    fs::remove_file(watching.path(KUBELET)).unwrap();
    let _listener = UnixListener::bind(watching.path(KUBELET)).unwrap();
    assert_eq!(watching.generation(0).await, 1);
}

#[tokio::test]
async fn a_directory_that_is_not_there_yet_is_waited_for() {
    let mut watching = Watching::begin("kubelet/device-plugins");
    fs::create_dir_all(watching.path("kubelet/device-plugins")).unwrap();
    let _listener =
        UnixListener::bind(watching.path("kubelet/device-plugins/kubelet.sock")).unwrap();
    watching.generation(0).await;
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_followed() {
    let mut watching = Watching::begin("plugins");
    let plugins = watching.path("plugins");
    let old = watching.path("old");
    fs::create_dir(&plugins).unwrap();
    let _first = UnixListener::bind(plugins.join(KUBELET)).unwrap();
    let first = watching.generation(0).await;
    fs::rename(&plugins, &old).unwrap();
    fs::create_dir(&plugins).unwrap();
    let _second = UnixListener::bind(plugins.join(KUBELET)).unwrap();
    let second = watching.generation(first).await;
    fs::remove_dir_all(&plugins).unwrap();
    watching.gone().await;
    fs::create_dir(&plugins).unwrap();
    let _third = UnixListener::bind(plugins.join(KUBELET)).unwrap();
    watching.generation(second).await;
}
