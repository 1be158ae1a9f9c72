//! A bundle in a directory of its own, which a real runtime runs.

use super::*;

/// A bundle and the containers that were started from it; dropping this removes all of them.
pub(super) struct Bundle {
    pub(super) dir: tempfile::TempDir,
    pub(super) name: String,
    pub(super) host: Host,
}

impl Bundle {
    pub(super) fn new() -> Self {
        for (program, package) in [
            ("/usr/sbin/runc", "runc"),
            ("/usr/bin/crun", "crun"),
            ("/bin/busybox", "busybox-static"),
        ] {
            assert!(
                Path::new(program).exists(),
                "{program} is missing: install the Debian package {package}"
            );
        }
        let dir = tempfile::Builder::new()
            .prefix("switchyard-test-")
            .tempdir()
            .unwrap();
        let name = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let rootfs = dir.path().join("rootfs");
        for path in ["bin", "etc", "proc", "dev", "sys", "tmp"] {
            fs::create_dir_all(rootfs.join(path)).unwrap();
        }
        fs::copy("/bin/busybox", rootfs.join("bin/busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", rootfs.join("bin").join(applet)).unwrap();
        }
        fs::write(
            rootfs.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n",
        )
        .unwrap();
        fs::write(rootfs.join("etc/group"), "root:x:0:\nextra:x:50:web\n").unwrap();
        for file in ["hosts", "resolv.conf", "hostname"] {
            fs::write(dir.path().join(file), format!("{file} of the sandbox\n")).unwrap();
        }
        fs::create_dir(dir.path().join("shm")).unwrap();
        let host = Host::detect(CgroupDriver::Fs, "switchyard-default").unwrap();
        Self { dir, name, host }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A case in the host's namespaces, which runs `script` with the default filter.
    pub(super) fn case(&self, script: &str) -> Case {
        let mut case = Case::plain();
        case.host = self.host.clone();
        case.image.entrypoint = words(&["/bin/sh", "-c", script]);
        case.image.cwd = "/".to_owned();
        case.task.args = Vec::new();
        case.task.security.seccomp = SeccompProfile::RuntimeDefault;
        let sandbox = &mut case.sandbox;
        sandbox.network = Namespace::Host;
        sandbox.ipc = Namespace::Host;
        sandbox.uts = Namespace::Host;
        sandbox.hosts_file = Some(self.path("hosts"));
        sandbox.resolv_conf = Some(self.path("resolv.conf"));
        sandbox.hostname_file = Some(self.path("hostname"));
        sandbox.shm = Some(self.path("shm"));
        sandbox.privileged = true;
        case.user = ResolvedUser {
            uid: 0,
            gid: 0,
            additional_gids: vec![0],
        };
        case.cgroups_path = format!("/{}/task", self.name);
        case
    }

    pub(super) fn write(&self, spec: &Value) {
        fs::write(
            self.path("config.json"),
            serde_json::to_vec_pretty(spec).unwrap(),
        )
        .unwrap();
    }

    pub(super) fn runc(&self, args: &[&str]) -> Command {
        let mut command = Command::new("/usr/sbin/runc");
        command
            .arg("--root")
            .arg(self.path("state"))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs the case to its end with runc, asserts that it succeeds, and returns its output.
    #[track_caller]
    pub(super) fn run(&self, case: &Case) -> String {
        let built = case.build_with(&RealHost).unwrap();
        self.write(&built.spec);
        let bundle = self.dir.path().to_str().unwrap();
        succeeded(
            &self
                .runc(&["run", "--bundle", bundle, &self.name])
                .output()
                .unwrap(),
        )
    }

    /// Starts the case, or another spec, and leaves it running.
    #[track_caller]
    pub(super) fn start(&self, spec: &Value) {
        self.write(spec);
        let bundle = self.dir.path().to_str().unwrap();
        let mut command = self.runc(&["run", "--detach", "--bundle", bundle, &self.name]);
        // A detached task keeps its streams open: a pipe would never end.
        let log = fs::File::create(self.path("log")).unwrap();
        let status = command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .unwrap();
        assert!(
            status.success(),
            "{}",
            fs::read_to_string(self.path("log")).unwrap()
        );
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = self.runc(&["delete", "--force", &self.name]).output();
        for hierarchy in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::remove_dir(hierarchy.path().join(&self.name).join("task"));
            let _ = fs::remove_dir(hierarchy.path().join(&self.name));
        }
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.name));
    }
}
