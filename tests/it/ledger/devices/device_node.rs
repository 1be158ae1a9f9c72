//! A node with one device that both orchestrators may use.

use super::*;

/// A node with one device that both orchestrators may use.
pub(super) struct DeviceNode {
    pub(super) node: TestNode,
    pub(super) runtime: Runtime,
    /// The id of the device.
    pub(super) id: String,
}

impl DeviceNode {
    pub(super) fn start() -> Self {
        let node = TestNode::start_configured(|root| {
            let dir = root.path().join("dev");
            std::fs::create_dir(&dir).expect("the root can be written");
            make_device(&dir.join("acme0"));
            let kubelet = root.path().join("kubelet");
            format!(
                "[devices]\nrestart_grace_seconds = 1\n[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\n\
                 pod_resources_socket = \"{0}/pod-resources/kubelet.sock\"\n\
                 [[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\nresource = \"{TPU}\"\n\
                 paths = [\"{1}/acme[0-9]\"]\nenv = \"ACME_DEVICES\"\n",
                kubelet.display(),
                dir.display()
            )
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let mut fixture = Self {
            node,
            runtime: runtime.expect("a runtime can be made"),
            id: String::new(),
        };
        assert!(
            eventually(SOON, || fixture.report()["slots"][0]["id"].is_string()),
            "{}",
            fixture.report()
        );
        fixture.id = fixture.report()["slots"][0]["id"]
            .as_str()
            .expect("it has an id")
            .to_owned();
        fixture
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.node.root().path().join("kubelet/device-plugins")
    }

    pub(super) fn path(&self) -> String {
        self.node
            .root()
            .path()
            .join("dev/acme0")
            .display()
            .to_string()
    }

    /// A kubelet, once it knows of the device.
    pub(super) fn kubelet(&self) -> Kubelet {
        let _runtime = self.runtime.enter();
        let kubelet = Kubelet::start(&self.directory(), Options::default());
        self.wait_healthy(&kubelet, 1);
        kubelet
    }

    /// Waits until so many devices are healthy as a kubelet sees it.
    pub(super) fn wait_healthy(&self, kubelet: &Kubelet, healthy: usize) {
        let what = format!("{healthy} of 1 devices are healthy");
        self.runtime
            .block_on(kubelet.wait_until(&what, |kubelet| kubelet.capacity(TPU) == (1, healthy)));
    }

    pub(super) fn admit(&self, kubelet: &Kubelet, pod: &str) -> Result<RunOptions, String> {
        self.runtime
            .block_on(kubelet.admit(pod, "main", &[(TPU, 1)]))
    }

    /// The output of `switchyard devices`.
    pub(super) fn report(&self) -> Value {
        orchestrators::report(&self.node)
    }

    /// That the device is held by one alone, and by whom.
    #[track_caller]
    pub(super) fn assert_held_by(&self, owner: &str, name: &str) {
        let report = self.report();
        let holders = report["slots"][0]["holders"]
            .as_array()
            .expect("it is a list")
            .clone();
        assert_eq!(holders.len(), 1, "{report:#}");
        assert_eq!(
            (holders[0]["owner"].as_str(), holders[0]["state"].as_str()),
            (Some(owner), Some("bound")),
            "{report:#}"
        );
        assert!(
            holders[0]["name"]
                .as_str()
                .is_some_and(|held| held.contains(name)),
            "{name}: {report:#}"
        );
    }

    #[track_caller]
    pub(super) fn assert_free(&self) {
        assert!(
            eventually(SOON, || self.report()["slots"][0]["holders"]
                .as_array()
                .is_some_and(Vec::is_empty)),
            "{:#}",
            self.report()
        );
    }

    /// The numbers of the device as a container sees it.
    pub(super) fn numbers(&self, container: &str) -> String {
        self.node
            .cri()
            .sh(container, &format!("stat -c %t:%T {}", self.path()))
    }
}
