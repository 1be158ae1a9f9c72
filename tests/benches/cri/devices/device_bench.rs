//! A node with many devices: a second daemon on the test bed's containerd, a kubelet that watches its
//! devices, and a Nomad agent.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::{Value, json};
use switchyard_kubelet::{Kubelet, Options};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::kubelet::device_plugin::v1beta1 as kubelet;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_client::DevicePluginClient as KubeletClient;
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::device::device_plugin_client::DevicePluginClient as NomadClient;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::leak_scan::{self, LeakScan};
use switchyard_tests::nomad::agent::{install_plugins, socket_args};
use switchyard_tests::nomad::plugin::PluginProcess;
use switchyard_tests::root::PrivateRoot;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::failure::Failure;
use crate::memory::Resident;
use crate::requests::Requests;
use crate::side::{Side, channel};
use crate::tasks::nomad::{NomadAgent, on_own_thread};
use crate::test_bed::TestBed;

/// Resources that are offered to the kubelet.
pub(crate) const RESOURCES: usize = 64;
/// Devices of each of them.
pub(crate) const DEVICES: usize = 100;
/// Devices of one more.
pub(crate) const LARGE: usize = 4000;
/// Device nodes that are one more resource's, a device each.
const NODES: u64 = 100;
/// Their major number, which the kernel leaves to experiments: no driver serves them, and they are never
/// opened.
const MAJOR: u64 = 240;
/// Prefix of all names of resources and kinds.
const VENDOR: &str = "bench.example";
/// The namespace of its containers.
pub(crate) const NAMESPACE: &str = "switchyard-devices";
/// Time for which the daemon stays idle before its memory is measured.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// The node. Dropping it ends and removes everything.
pub(crate) struct DeviceBench {
    /// Its CRI server.
    pub(crate) side: Side,
    /// The common parts of its requests for pods.
    pub(crate) requests: Requests,
    /// Its agent.
    pub(crate) nomad: NomadAgent,
    /// Its device plugin for Nomad.
    pub(crate) reserve: ReserveClient,
    /// The kubelet, which is another one after a restart.
    kubelet: Option<Kubelet>,
    plugin: DevicePlugin,
    /// The number of the first resource of which nothing was given out.
    unused: Cell<usize>,
    /// Growth of its memory with the devices, kubelet included.
    pub(crate) growth: Resident,
    _daemon: Daemon,
    containerd: PathBuf,
    // Last: its drop removes what the others live in.
    root: PrivateRoot,
}

/// A device plugin of Nomad's that an agent has launched.
struct DevicePlugin(Option<PluginProcess>);

/// `Reserve`, over its own connection.
#[derive(Clone, Debug)]
pub(crate) struct ReserveClient(NomadClient<Channel>);

/// `Allocate` of one resource, over its own connection.
#[derive(Clone, Debug)]
pub(crate) struct AllocateClient {
    client: KubeletClient<Channel>,
    /// The ids of its slots that were not given out.
    pub(crate) ids: Vec<String>,
}

/// The list of a resource, as a kubelet follows it.
pub(crate) struct DeviceListStream(Streaming<kubelet::ListAndWatchResponse>);

/// The name of a resource by its number.
fn resource(number: usize) -> String {
    format!("{VENDOR}/r{number:02}")
}

/// The name of the resource with many devices.
pub(crate) fn large() -> String {
    format!("{VENDOR}/large")
}

/// The name of the resource of device nodes.
pub(crate) fn nodes() -> String {
    format!("{VENDOR}/nodes")
}

// === impl DeviceBench ===

impl DeviceBench {
    /// Starts all of it.
    pub(crate) async fn start(stand: &TestBed) -> Result<Self, Failure> {
        let root = PrivateRoot::new();
        let external = format!(
            "[containerd]\nmode = \"external\"\naddress = {:?}\nnamespace = {NAMESPACE:?}\n",
            stand.containerd.socket
        );
        let mut without = Daemon::start(&root, &external);
        let before = idle_memory(&without).await?;
        without.kill9();

        fs::create_dir_all(root.cdi())?;
        for number in 0..RESOURCES {
            describe(&root.cdi(), &resource(number), DEVICES)?;
        }
        let daemon = Daemon::start(&root, &(external + &groups(&root)));
        let kubelet = Kubelet::start(&directory(&root), Options::default());
        wait_resources(&kubelet, RESOURCES).await;
        let after = idle_memory(&daemon).await?;
        let growth = after.since(before);
        describe(&root.cdi(), &large(), LARGE)?;
        make_nodes(&devices(&root))?;
        wait_resources(&kubelet, RESOURCES + 2).await;

        let core = channel(&stand.containerd.socket).await?;
        let mut side = Side::connect("with devices", &root.cri_socket(), NAMESPACE, core).await?;
        side.wait_ready().await?;
        side.pull(&stand.image).await?;
        let nomad = NomadAgent::start(&root, &stand.image).await?;
        let plugin = DevicePlugin::launch(&root)?;
        let reserve = ReserveClient::connect(&plugin.address()?).await?;
        let requests = Requests::of(&root, &stand.image);
        let containerd = stand.containerd.socket.clone();
        let kubelet = Some(kubelet);
        let unused = Cell::new(0);
        Ok(Self {
            side,
            requests,
            nomad,
            reserve,
            kubelet,
            plugin,
            unused,
            growth,
            _daemon: daemon,
            containerd,
            root,
        })
    }

    /// Ends the kubelet and starts another one: from its socket to the answer to the last of the
    /// registrations.
    pub(crate) async fn restart_kubelet(&mut self) -> Result<Duration, Failure> {
        let checkpoint = self.kubelet.take().ok_or("there is no kubelet")?.kill();
        let options = Options {
            checkpoint,
            ..Options::default()
        };
        let kubelet = Kubelet::start(&directory(&self.root), options);
        wait_resources(&kubelet, RESOURCES + 2).await;
        let last = kubelet.registrations().iter().map(|one| one.answered).max();
        let took = last
            .ok_or("nothing was registered")?
            .duration_since(kubelet.began());
        self.kubelet = Some(kubelet);
        Ok(took)
    }

    /// The socket of the plugin of a resource of which nothing was given out yet.
    pub(crate) fn unused(&self) -> Result<PathBuf, Failure> {
        let number = self.unused.get();
        self.unused.set(number + 1);
        if number >= RESOURCES {
            return Err(
                "devices of all resources were given out: ask for fewer batches or storms".into(),
            );
        }
        self.endpoint(&resource(number))
    }

    /// The socket of the plugin of a resource.
    pub(crate) fn endpoint(&self, resource: &str) -> Result<PathBuf, Failure> {
        let all = self
            .kubelet
            .as_ref()
            .ok_or("there is no kubelet")?
            .registrations();
        let last = all
            .iter()
            .rev()
            .find(|registered| registered.resource == resource);
        let last = last.ok_or_else(|| format!("{resource} is not registered"))?;
        Ok(directory(&self.root).join(&last.endpoint))
    }

    /// Returns the address at which the device plugin for Nomad listens.
    pub(crate) fn device_plugin(&self) -> Result<PathBuf, Failure> {
        self.plugin.address()
    }

    /// Returns the sockets of its CRI server and of the containerd below it.
    pub(crate) fn sockets(&self) -> (PathBuf, PathBuf) {
        (self.root.cri_socket(), self.containerd.clone())
    }

    /// A file that can be written, on the disk of its journal.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.state().join(name)
    }

    /// Removes the remaining pods and tasks.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let findings = leak_scan::in_containerd(&self.containerd, NAMESPACE);
        let mut found = LeakScan::of(&self.root).findings;
        found.extend(
            findings
                .into_iter()
                .map(|finding| format!("{NAMESPACE}: {finding}")),
        );
        found
    }
}

/// The memory of a daemon that does nothing.
async fn idle_memory(daemon: &Daemon) -> Result<Resident, Failure> {
    tokio::time::sleep(IDLE_TIME).await;
    Resident::of(u32::try_from(daemon.pid())?)
}

/// Returns once a kubelet has the devices of so many resources.
async fn wait_resources(kubelet: &Kubelet, resources: usize) {
    let names: Vec<String> = (0..resources)
        .map(|number| {
            if number < RESOURCES {
                resource(number)
            } else {
                large()
            }
        })
        .collect();
    kubelet
        .wait_until("all resources are followed", |kubelet| {
            kubelet.registrations().len() >= resources
                && names.iter().all(|name| kubelet.capacity(name).0 > 0)
        })
        .await;
}

fn directory(root: &PrivateRoot) -> PathBuf {
    root.path().join("kubelet/device-plugins")
}

fn devices(root: &PrivateRoot) -> PathBuf {
    root.path().join("dev")
}

fn make_nodes(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    for number in 0..NODES {
        let path = directory.join(format!("bench{number:02}"));
        mknod(
            &path,
            SFlag::S_IFCHR,
            Mode::S_IRUSR | Mode::S_IWUSR,
            makedev(MAJOR, number),
        )?;
    }
    Ok(())
}

/// The configuration of all groups: of one kind of the Container Device Interface each, and one of device
/// nodes.
fn groups(root: &PrivateRoot) -> String {
    let mut text = format!(
        "[devices.kubelet]\ndirectory = {:?}\npod_resources_socket = {:?}\n",
        directory(root),
        root.path().join("kubelet/pod-resources/kubelet.sock")
    );
    let by_path = format!("paths = [\"{}/bench*\"]", devices(root).display());
    let described = (0..RESOURCES).map(resource).chain([large()]).map(|kind| {
        let by_kind = format!("cdi = [{kind:?}]");
        (kind, by_kind)
    });
    for (name, found) in described.chain([(nodes(), by_path)]) {
        let model = name.trim_start_matches(VENDOR).trim_start_matches('/');
        text.push_str(&format!(
            "[[devices.groups]]\nvendor = \"bench\"\ntype = \"device\"\nname = {model:?}\nresource = {name:?}\n{found}\n"
        ));
    }
    text
}

/// Writes a CDI file with this many devices of a kind, each with its own variable.
fn describe(directory: &Path, kind: &str, devices: usize) -> Result<(), Failure> {
    let device = |number: usize| -> Value {
        json!({ "name": format!("{number:04}"), "containerEdits": { "env": [format!("BENCH_DEVICE={number}")] } })
    };
    let devices: Vec<Value> = (0..devices).map(device).collect();
    let text = json!({ "cdiVersion": "0.6.0", "kind": kind, "devices": devices }).to_string();
    let name = kind.replace('/', "-");
    let new = directory.join(format!("{name}.new"));
    fs::write(&new, text)?;
    Ok(fs::rename(new, directory.join(format!("{name}.json")))?)
}

// === impl DevicePlugin ===

impl DevicePlugin {
    fn launch(root: &PrivateRoot) -> Result<Self, Failure> {
        let plugin = on_own_thread(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            let runtime = Arc::new(runtime.expect("a runtime can be made"));
            PluginProcess::launch(
                &install_plugins(root).join("switchyard-device"),
                &socket_args(root),
                &runtime,
            )
        })?;
        let plugin =
            plugin.map_err(|failed| format!("the device plugin does not start: {failed:?}"))?;
        Ok(Self(Some(plugin)))
    }

    fn address(&self) -> Result<PathBuf, Failure> {
        Ok(self
            .0
            .as_ref()
            .ok_or("the device plugin has ended")?
            .address()
            .to_owned())
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        // A tokio runtime must not be dropped on a worker thread of another one. A panic there has been
        // reported.
        let plugin = self.0.take();
        let _ = on_own_thread(|| drop(plugin));
    }
}

// === impl ReserveClient ===

impl ReserveClient {
    /// Connects to a device plugin of Nomad's.
    pub(crate) async fn connect(address: &Path) -> Result<Self, Failure> {
        Ok(Self(
            NomadClient::new(channel(address).await?).max_decoding_message_size(usize::MAX),
        ))
    }

    /// Reserves a slot; what it gives, and how long that took.
    pub(crate) async fn take(
        &mut self,
        id: &str,
    ) -> Result<(nomad::ContainerReservation, Duration), Failure> {
        let request = nomad::ReserveRequest {
            device_ids: vec![id.to_owned()],
        };
        let begin = Instant::now();
        let answer = self.0.reserve(request).await;
        let took = begin.elapsed();
        let answer = answer
            .map_err(|status| format!("Reserve: {status}"))?
            .into_inner();
        Ok((
            answer.container_res.ok_or("Reserve has given nothing")?,
            took,
        ))
    }
}

// === impl AllocateClient ===

impl AllocateClient {
    /// Connects to the plugin of a resource, and lists its slots.
    pub(crate) async fn connect(endpoint: &Path) -> Result<(Self, DeviceListStream), Failure> {
        let mut client = KubeletClient::new(channel(endpoint).await?);
        let mut follow =
            DeviceListStream(client.list_and_watch(kubelet::Empty {}).await?.into_inner());
        let mut ids: Vec<String> = follow
            .next()
            .await?
            .into_iter()
            .filter(|(_, healthy)| *healthy)
            .map(|(id, _)| id)
            .collect();
        // They are taken from the end.
        ids.reverse();
        Ok((Self { client, ids }, follow))
    }

    /// Allocates a slot that was not given out yet; what it gives, and how long that took.
    pub(crate) async fn take(
        &mut self,
    ) -> Result<(kubelet::ContainerAllocateResponse, Duration), Failure> {
        let id = self.ids.pop().ok_or("all slots were given out")?;
        let wanted = kubelet::ContainerAllocateRequest {
            devices_ids: vec![id],
        };
        let request = kubelet::AllocateRequest {
            container_requests: vec![wanted],
        };
        let begin = Instant::now();
        let answer = self.client.allocate(request).await;
        let took = begin.elapsed();
        let answer = answer
            .map_err(|status| format!("Allocate: {status}"))?
            .into_inner();
        let given = answer
            .container_responses
            .into_iter()
            .next()
            .ok_or("Allocate has given nothing")?;
        Ok((given, took))
    }
}

/// Gives a container what the plugin has answered, as a kubelet does.
pub(crate) fn give(
    container: &mut cri::ContainerConfig,
    given: kubelet::ContainerAllocateResponse,
) {
    let kubelet::ContainerAllocateResponse {
        envs,
        mounts: _,
        devices: _,
        annotations,
        cdi_devices,
    } = given;
    let variables = envs.into_iter().map(|(key, value)| cri::KeyValue {
        key,
        value: value.into_bytes(),
    });
    container.envs.extend(variables);
    container.annotations.extend(annotations);
    container.cdi_devices.extend(
        cdi_devices
            .into_iter()
            .map(|device| cri::CdiDevice { name: device.name }),
    );
}

// === impl DeviceListStream ===

impl DeviceListStream {
    /// The slots of the next list, and whether they are healthy.
    pub(crate) async fn next(&mut self) -> Result<BTreeMap<String, bool>, Failure> {
        let message = self
            .0
            .message()
            .await?
            .ok_or("a list of devices has ended")?;
        Ok(message
            .devices
            .into_iter()
            .map(|device| (device.id, device.health == "Healthy"))
            .collect())
    }
}
