//! An independent plugin host: go-plugin's own client and HCL's own encoder, from Debian's packages, drive
//! the task driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Value, json};
use switchyard_tests::debian::{self, PackageDatabase};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::scratch::Scratch;

/// Directory of Go's sources in Debian's packages.
const GOCODE: &str = "/usr/share/gocode";

/// Import path of the host's wire types.
const WIRE: &str = "switchyard/wire";

/// The files that its wire types are made from.
const PROTOS: [&str; 4] = [
    "nomad/plugins/base/base.proto",
    "nomad/plugins/drivers/driver.proto",
    "nomad/plugins/shared/hclspec/hcl_spec.proto",
    "nomad/plugins/shared/structs/structs.proto",
];

/// Builds the host, as Debian builds Go programs: from the sources of its packages, without modules. It is
/// built in a Debian that has nothing but what `tests/run` installs, so that no package of this machine can
/// stand in for one that is missing in its list.
fn build() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let database = PackageDatabase::read();
    let scratch = Scratch::new();
    let root = scratch.path().join("root");
    fs::create_dir(&root).expect("the scratch directory is ours");
    database
        .fresh_debian(&debian::packages_of_script(&tests.join("run")))
        .make(&root)
        .expect("it can be made");
    let protos = tests
        .join("../proto")
        .canonicalize()
        .expect("the repository has it");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nomad-go");
    let wire = dir.join("src").join(WIRE);
    let sources = dir.join("src/switchyard/nomad-go");
    for dir in [&wire, &sources] {
        fs::create_dir_all(dir).expect("the target directory can be written");
    }
    let enter = |program: &str| debian::enter(&root, &[&dir, &protos], Path::new(program));
    for proto in PROTOS {
        run(enter("protoc")
            .arg("-I")
            .arg(&protos)
            .arg(go_types(&wire))
            .arg(protos.join(proto)));
    }
    for entry in fs::read_dir(tests.join("nomad-go")).expect("the host's sources are there") {
        let file = entry.expect("they can be read").path();
        let name = file.file_name().expect("a file has a name");
        fs::copy(&file, sources.join(name)).expect("the target directory can be written");
    }
    let host = dir.join("host");
    let mut command = enter("go");
    command
        .args(["build", "-o"])
        .arg(&host)
        .arg("switchyard/nomad-go");
    command
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("GOPATH", format!("{}:{GOCODE}", dir.display()));
    command.env("GOCACHE", dir.join("cache")).env("HOME", &dir);
    run(&mut command);
    host
}

/// The arguments by which protoc generates Go types from our `.proto` files.
fn go_types(wire: &Path) -> String {
    let mut options = "plugins=grpc,paths=source_relative".to_owned();
    for proto in PROTOS {
        let package = Path::new(proto).parent().expect("each is in a directory");
        options.push_str(&format!(",M{proto}={WIRE}/{}", package.display()));
    }
    for known in ["duration", "timestamp", "wrappers"] {
        options.push_str(&format!(
            ",Mgoogle/protobuf/{known}.proto=github.com/golang/protobuf/ptypes/{known}"
        ));
    }
    format!("--go_out={options}:{}", wire.display())
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program was found");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}",
        output.status
    );
    text
}

/// A configuration of the driver that says something of each kind of value.
fn config(node: &TestNode) -> Value {
    json!({
        "image": node.image(), "command": "sh", "args": ["-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"],
        "network_mode": "none", "hostname": "go", "init": false, "pids_limit": 100, "shm_size": 1_048_576,
        "ulimit": [{ "nofile": "512:1024" }], "labels": [{ "from": "go", "number": "42" }],
        "cap_drop": ["mknod"], "extra_hosts": ["db:10.1.2.3"],
        "mount": [{ "type": "tmpfs", "target": "/scratch", "tmpfs_options": { "size": 1_048_576 } }],
        "auth": { "username": "", "password": "" }, "storage_opt": {},
    })
}

#[test]
fn go_plugin_client_runs_a_task_from_handshake_to_exit() {
    let (host, node) = thread::scope(|scope| {
        let host = scope.spawn(build);
        let node = TestNode::shared();
        (host.join().expect("the program can be built"), node)
    });
    // Our own host says what a plugin takes, and encodes the same configuration.
    let agent = Agent::start(node.root(), &json!({}));
    let config = config(&node);
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    let ours = std::mem::take(&mut task.config.msgpack_driver_config);
    let (exe, args) = agent.program();
    let encoded = task.task_dir().join("encoded");
    let orders = json!({
        "Exe": exe, "Args": args, "Plugin": { "extra_labels": ["job_name"], "gc": { "image_delay": "1h" } },
        "Task": config, "Request": STANDARD.encode(task.config.encode_to_vec()), "Encoded": encoded,
    });
    let file = task.task_dir().join("orders.json");
    fs::write(&file, orders.to_string()).expect("the root can be written");
    let printed = run(Command::new(host).arg(&file));
    assert!(printed.contains("all as it should be"), "{printed}");
    assert_eq!(
        fs::read(&encoded).expect("the host has written it"),
        ours,
        "two encoders, one form"
    );
    task.remove_cgroups();
}
