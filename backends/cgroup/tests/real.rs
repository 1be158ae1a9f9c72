//! Creates a cgroup on this node, lets a child use CPU and run out of memory in it, and removes it. Needs
//! root.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use switchyard_cgroup::{CgroupMode, Error, Group, Kills, Reader};

/// A group in every hierarchy of this node, removed when dropped.
struct Fixture {
    reader: Reader,
    group: Group,
    child: Option<Child>,
}

impl Fixture {
    fn new(controllers: &[&str]) -> Self {
        let unique = tempfile::Builder::new()
            .prefix("switchyard-test-")
            .tempdir()
            .unwrap();
        let name = unique.path().file_name().unwrap().to_str().unwrap();
        let reader = Reader::detect().unwrap();
        let group = Group::from_path(Path::new(name)).unwrap();
        let fixture = Self {
            reader,
            group,
            child: None,
        };
        if fixture.reader.hierarchy().mode() == CgroupMode::V2 {
            // Controllers that the root does not enable for its children are missing in the group; the test
            // does not change that.
            let root = fixture.dir("memory").parent().unwrap().to_owned();
            let passed = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap();
            for controller in controllers.iter().filter(|name| **name != "cpuacct") {
                assert!(
                    passed.contains(controller),
                    "{controller} is not in cgroup.subtree_control of the root"
                );
            }
        }
        for controller in controllers {
            fs::create_dir_all(fixture.dir(controller))
                .expect("cgroups can be made: this test needs root");
        }
        fixture
    }

    fn dir(&self, controller: &str) -> PathBuf {
        let dir = self.reader.hierarchy().dir(controller, &self.group);
        dir.unwrap_or_else(|| panic!("no hierarchy has {controller}"))
    }

    /// Runs a shell script in the group; it waits for a line on its standard input first.
    fn spawn(&mut self, controllers: &[&str], script: &str) {
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        for controller in controllers {
            fs::write(
                self.dir(controller).join("cgroup.procs"),
                child.id().to_string(),
            )
            .unwrap();
        }
        self.child = Some(child);
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    fn go(&mut self) {
        use std::io::Write;
        self.child()
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"go\n")
            .unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.reader.remove(&self.group);
    }
}

#[test]
fn usage_and_processes_of_a_child_are_read_and_cgroup_removed() {
    use std::io::Read;
    let controllers = ["cpuacct", "cpu", "memory", "pids"];
    let mut fixture = Fixture::new(&controllers);
    let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; read end";
    fixture.spawn(&controllers, burn);
    let pid = fixture.child().id();
    assert_eq!(
        fixture.reader.procs(&fixture.group).unwrap(),
        Some(vec![pid])
    );
    fixture.go();
    let mut line = [0; 5];
    fixture
        .child()
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"done\n");

    let usage = fixture.reader.usage(&fixture.group).unwrap().unwrap();
    let cpu = usage.cpu.unwrap();
    assert!(cpu.total_ns > 1_000_000, "{cpu:?}");
    assert!(
        cpu.user_ns.is_some() && cpu.system_ns.is_some() && cpu.throttled_periods.is_some(),
        "{cpu:?}"
    );
    let memory = usage.memory.unwrap();
    assert!(memory.usage_bytes >= memory.working_set_bytes, "{memory:?}");
    assert_eq!((memory.available_bytes, usage.pids), (None, Some(1)));
    assert!(
        memory.rss_bytes.is_some() && memory.page_faults.is_some(),
        "{memory:?}"
    );
    assert_eq!(fixture.reader.oom_kills(&fixture.group).unwrap(), Some(0));

    let busy = fixture.reader.remove(&fixture.group).unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy:?}");
    fixture.child().kill().unwrap();
    fixture.child().wait().unwrap();
    fixture.reader.remove(&fixture.group).unwrap();
    assert_eq!(fixture.reader.usage(&fixture.group).unwrap(), None);
    fixture.reader.remove(&fixture.group).unwrap();
}

#[test]
fn cgroup_is_frozen_until_thawed() {
    use std::io::Read;
    let mut fixture = Fixture::new(&["freezer"]);
    fixture.spawn(&["freezer"], "echo done; read end");
    assert_eq!(
        fixture.reader.is_frozen(&fixture.group).unwrap(),
        Some(false)
    );
    fixture.reader.freeze(&fixture.group, true).unwrap();
    assert_eq!(
        fixture.reader.is_frozen(&fixture.group).unwrap(),
        Some(true)
    );
    let v1 = fixture.reader.hierarchy().mode() == CgroupMode::V1;
    let (says, word) = if v1 {
        ("freezer.state", "FROZEN")
    } else {
        ("cgroup.events", "frozen 1")
    };
    let says = fixture.dir("freezer").join(says);
    while !fs::read_to_string(&says).unwrap().contains(word) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fixture.go();
    fixture.reader.freeze(&fixture.group, false).unwrap();
    assert_eq!(
        fixture.reader.is_frozen(&fixture.group).unwrap(),
        Some(false)
    );
    let mut line = [0; 5];
    fixture
        .child()
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"done\n");
}

#[test]
fn oom_kill_is_known_after_cgroup_removal() {
    let mut fixture = Fixture::new(&["memory"]);
    let dir = fixture.dir("memory");
    let v1 = fixture.reader.hierarchy().mode() == CgroupMode::V1;
    let (limit, swap) = if v1 {
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    } else {
        ("memory.max", "memory.swap.max")
    };
    fs::write(dir.join(limit), "8388608").unwrap();
    if dir.join(swap).exists() {
        fs::write(dir.join(swap), if v1 { "8388608" } else { "0" }).unwrap();
    }
    let mut late = fixture.reader.watch_oom(&fixture.group).unwrap().unwrap();
    let mut watch = fixture.reader.watch_oom(&fixture.group).unwrap().unwrap();
    assert_eq!(watch.kills().unwrap(), Kills::default());
    fixture.spawn(
        &["memory"],
        "exec dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null",
    );
    fixture.go();
    let status = fixture.child().wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "{status:?}"
    );
    let usage = fixture.reader.usage(&fixture.group).unwrap().unwrap();
    assert!(usage.memory.unwrap().available_bytes.is_some());
    assert_eq!(fixture.reader.oom_kills(&fixture.group).unwrap(), Some(1));
    assert_eq!(watch.kills().unwrap().counted, 1);
    fixture.reader.remove(&fixture.group).unwrap();
    assert_eq!(fixture.reader.oom_kills(&fixture.group).unwrap(), None);
    assert_eq!(watch.kills().unwrap().counted, 1);
    let late = late.kills().unwrap();
    assert_eq!(
        late.counted, 1,
        "on v1 the eventfd outlives the group, on v2 the group above has counted"
    );
}

#[test]
fn final_oom_count_is_kept() {
    let fixture = Fixture::new(&["memory"]);
    let mut watch = fixture.reader.watch_oom(&fixture.group).unwrap().unwrap();
    assert_eq!(watch.kills_at_exit().unwrap(), Kills::default());
    fixture.reader.remove(&fixture.group).unwrap();
    assert_eq!(watch.kills().unwrap(), Kills::default());
    assert_eq!(watch.kills_at_exit().unwrap(), Kills::default());
}

#[test]
fn cgroup_removed_without_oom_reports_no_kill() {
    let fixture = Fixture::new(&["memory"]);
    let mut watch = fixture.reader.watch_oom(&fixture.group).unwrap().unwrap();
    fixture.reader.remove(&fixture.group).unwrap();
    assert_eq!(watch.kills().unwrap(), Kills::default());
}
