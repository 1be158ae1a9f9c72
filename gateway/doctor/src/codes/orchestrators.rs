//! 4xx: a kubelet. 5xx: Nomad. 7xx: devices.

use super::super::finding::FindingCode;

pub(in super::super) const OTHER_RUNTIME: FindingCode = FindingCode::warning(
    "SY401",
    "the kubelet uses another container runtime",
    "Pods of this node do not run on Switchyard, and devices and host ports are not shared with Nomad.",
    "Set --container-runtime-endpoint (or containerRuntimeEndpoint in the kubelet's configuration) on a drained node, or set cri.enabled = false if this is intended.",
);
pub(in super::super) const RUNTIME_SOCKET: FindingCode = FindingCode::error(
    "SY402",
    "nothing listens on the socket that the kubelet uses",
    "The kubelet cannot run pods, and the node becomes not ready.",
    "Start the runtime that the socket belongs to, or correct the kubelet's endpoint. dockershim was removed from kubelets in 1.24.",
);
pub(in super::super) const CGROUP_DRIVER: FindingCode = FindingCode::error(
    "SY403",
    "the kubelet uses another cgroup driver",
    "Limits of pods do not apply, or pods are not created. Kubelets from 1.34 ask the runtime instead of reading the key.",
    "Set cgroupDriver of the kubelet, or cgroup.driver on a node without containers, so that both are the same.",
);
pub(in super::super) const CRI_DISABLED: FindingCode = FindingCode::error(
    "SY404",
    "a kubelet uses the CRI socket, which is not served",
    "The kubelet cannot run pods.",
    "Set cri.enabled = true, and restart the daemon.",
);
pub(in super::super) const STALE_RUNTIME_SOCKET: FindingCode = FindingCode::note(
    "SY405",
    "a socket of another container runtime is stale",
    "Tools that look for a runtime by the path of its socket (kubeadm, crictl) take it for one and fail.",
    "Remove the file if that runtime is not used any more.",
);
pub(in super::super) const CRICTL: FindingCode = FindingCode::note(
    "SY406",
    "crictl uses another socket",
    "`crictl ps` shows the containers of another runtime, or fails.",
    "Set runtime-endpoint in /etc/crictl.yaml to the socket of the daemon, by default unix:///run/switchyard/cri.sock.",
);
pub(in super::super) const SWAP: FindingCode = FindingCode::warning(
    "SY407",
    "swap is on, and the kubelet does not accept that",
    "The kubelet does not start with failSwapOn, its default.",
    "Turn swap off (`swapoff -a`, and /etc/fstab), or set failSwapOn: false in the kubelet's configuration.",
);
pub(in super::super) const NO_PLUGIN_DIRECTORY: FindingCode = FindingCode::warning(
    "SY408",
    "the kubelet's directory for device plugins is missing",
    "Groups of devices with a `resource` are not offered to a kubelet.",
    "Start the kubelet, which creates it, or correct devices.kubelet.directory.",
);
pub(in super::super) const NO_PLUGIN_BLOCK: FindingCode = FindingCode::warning(
    "SY501",
    "the Nomad agent has no plugin block for Switchyard",
    "Agents from 1.10 start only plugins with a block: jobs with driver = \"switchyard\" are not placed on this node.",
    "Add plugin \"switchyard\" {} to the agent's configuration, and restart the agent. nomad/agent.hcl of the examples (/usr/share/doc/switchyard/examples, /usr/local/share/doc/switchyard/examples after the tarball) is a whole file for its directory.",
);
pub(in super::super) const NO_LAUNCHER: FindingCode = FindingCode::error(
    "SY502",
    "a plugin is missing in the Nomad agent's plugin_dir",
    "The agent does not have the driver, although its configuration names it.",
    "Install the plugins into the directory, and restart the agent.",
);
pub(in super::super) const BROKEN_LAUNCHER: FindingCode = FindingCode::error(
    "SY503",
    "a plugin in the Nomad agent's plugin_dir cannot be executed",
    "The agent does not start while a link leads nowhere; else it does not have the driver, or executes another program than the installed one.",
    "Install the plugins again, and restart the agent.",
);
pub(in super::super) const OTHER_NOMAD_SOCKET: FindingCode = FindingCode::error(
    "SY504",
    "the Nomad agent's plugin block names another socket",
    "The plugin waits for a daemon on that socket: tasks are not started.",
    "Correct args = [\"--socket\", PATH] in the plugin block, or nomad.socket.",
);
pub(in super::super) const AGENT_WITHOUT_SESSION: FindingCode = FindingCode::warning(
    "SY508",
    "the Nomad agent has no session with the daemon",
    "The agent reports the driver as undetected, and places no task here. Tasks that run continue.",
    "Restart the agent, which starts its plugin again; its log says why the plugin did not connect.",
);
pub(in super::super) const DOCKER_BESIDE: FindingCode = FindingCode::note(
    "SY505",
    "Nomad's docker driver is usable beside this one",
    "Jobs that still say driver = \"docker\" run in Docker: with another image store, other mirrors, and devices and ports that no ledger allocates.",
    "Remove Docker from the node, or give the plugin args = [\"--name\", \"docker\"] so that such jobs run here.",
);
pub(in super::super) const NOMAD_DISABLED: FindingCode = FindingCode::error(
    "SY506",
    "a Nomad agent has the plugin, but Nomad is not served",
    "The plugin waits for a daemon: tasks are not started.",
    "Set nomad.enabled = true, and restart the daemon.",
);
pub(in super::super) const NO_DEVICE_PLUGIN: FindingCode = FindingCode::note(
    "SY507",
    "the Nomad agent has no plugin block for the device plugin",
    "Jobs cannot request the devices of devices.groups.",
    "Add plugin \"switchyard-device\" {} to the agent's configuration, and restart the agent.",
);
pub(in super::super) const NOT_JOINED: FindingCode = FindingCode::warning(
    "SY601",
    "the node has not joined its swarm",
    "The configuration names a token and managers, or an operator has begun a join; no task of the swarm is placed here.",
    "Do what the reason says: another token, or a way to TCP port 2377 of a manager. A node that has left a swarm, or was removed from it, joins only by `switchyard swarm join`.",
);
pub(in super::super) const WORKER_ENDED: FindingCode = FindingCode::error(
    "SY602",
    "the node is no working member of its swarm",
    "It was removed from the swarm, its certificate is outside of its time by the clock of the node, its files are damaged, or their disk hangs: the swarm has lost the node and its tasks.",
    "Do what the reason says. Set a wrong clock right, and mend a disk that hangs: the node continues by itself then. Otherwise run `switchyard swarm leave`, remove the node on a manager (`docker node rm`), and join again.",
);
pub(in super::super) const NO_SESSION: FindingCode = FindingCode::warning(
    "SY603",
    "no manager of the swarm serves the node",
    "After three heartbeats the swarm takes the node for down, and starts its tasks elsewhere, while they continue here.",
    "Look whether the managers run, and whether TCP port 2377 of them can be reached from here.",
);
pub(in super::super) const CERTIFICATE_ENDS: FindingCode = FindingCode::warning(
    "SY604",
    "the node's certificate in the swarm ends soon",
    "It should have been renewed long ago. When it has ended, no manager accepts the node any more.",
    "The reason of the last attempt is in `switchyard swarm status`; any manager that can be reached renews it.",
);
pub(in super::super) const CLOCK_BESIDE_CERTIFICATE: FindingCode = FindingCode::error(
    "SY605",
    "the clock is outside of the time of the node's certificate in the swarm",
    "Connections to managers are refused by either side.",
    "Set the clock right, and keep it so (chrony, systemd-timesyncd). If it is right, the certificate has expired: leave the swarm, and join again.",
);
pub(in super::super) const DOCKERD_BESIDE: FindingCode = FindingCode::note(
    "SY606",
    "dockerd runs beside the worker of the swarm",
    "Its containers have ports, devices, processors and memory that no ledger allocates. If it is in the same swarm, this machine is two nodes of it.",
    "Let dockerd leave the swarm, and move its containers: docs/swarm.md has the steps.",
);
pub(in super::super) const SAME_NODE: FindingCode = FindingCode::error(
    "SY607",
    "another machine is the same node of the swarm",
    "It has this node's certificate, as a machine that was made from an image or a copy of the disk of this one, or a copy of the state directory. They end each other's sessions, and both lose their tasks in turn.",
    "Find the other machine: its host name and address are in `docker node inspect` on a manager while it has the session. Run `switchyard swarm leave` on one of the two, and join it again. Before an image is made of a node, run `switchyard swarm leave` there, or leave the state directory out.",
);
pub(in super::super) const PROMOTED: FindingCode = FindingCode::warning(
    "SY608",
    "the swarm has promoted the node to a manager",
    "It stays a worker, because only workers are supported, and its certificate is not renewed any more: the membership ends with it.",
    "Run `docker node rm --force` for the node on a manager and `switchyard swarm leave` here, and join again with a worker token.",
);
pub(in super::super) const EMPTY_GROUP: FindingCode = FindingCode::warning(
    "SY701",
    "a group of devices has no device",
    "Pods and jobs that request it wait. The paths, ids or CDI kinds of the group match nothing on this node.",
    "Correct the group in devices.groups, or load the driver of the devices.",
);
pub(in super::super) const CDI: FindingCode = FindingCode::warning(
    "SY702",
    "a file or device of the Container Device Interface cannot be used",
    "The daemon refuses containers that request its devices.",
    "Correct the file, or let the vendor's tool write it again (`nvidia-ctk cdi generate`).",
);
pub(in super::super) const UNHEALTHY_DEVICE: FindingCode = FindingCode::warning(
    "SY703",
    "a device is unhealthy",
    "It is allocated to nobody.",
    "The reason says what is missing; `switchyard devices` shows all devices.",
);
pub(in super::super) const NODE_DEVICE: FindingCode = FindingCode::error(
    "SY780",
    "a device file that every program of the node uses is damaged",
    "Programs of other users than root fail to open it, also many that have nothing to do with containers. Whoever owns it may close it to all.",
    "Give it back to root with the mode 0666, or make it again. /dev/null gets another owner by crun before 1.24, which gives it to the user of a container or of an exec; this daemon gives it back after each start, other ones of the node do not: upgrade crun. A regular file in its place comes from a program that root has told to write or move a file there.",
);

pub(super) const ALL: &[&FindingCode] = &[
    &OTHER_RUNTIME,
    &RUNTIME_SOCKET,
    &CGROUP_DRIVER,
    &CRI_DISABLED,
    &STALE_RUNTIME_SOCKET,
    &CRICTL,
    &SWAP,
    &NO_PLUGIN_DIRECTORY,
    &NO_PLUGIN_BLOCK,
    &NO_LAUNCHER,
    &BROKEN_LAUNCHER,
    &OTHER_NOMAD_SOCKET,
    &DOCKER_BESIDE,
    &NOMAD_DISABLED,
    &NO_DEVICE_PLUGIN,
    &AGENT_WITHOUT_SESSION,
    &NOT_JOINED,
    &WORKER_ENDED,
    &NO_SESSION,
    &CERTIFICATE_ENDS,
    &CLOCK_BESIDE_CERTIFICATE,
    &DOCKERD_BESIDE,
    &SAME_NODE,
    &PROMOTED,
    &EMPTY_GROUP,
    &CDI,
    &UNHEALTHY_DEVICE,
    &NODE_DEVICE,
];
