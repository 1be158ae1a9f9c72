//! Tests of the support code on the real machine, as all other tests rely on it.

mod containers;
mod links;
mod networks;
mod roots;

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use switchyard_tests::host::{cgroups, mounts, pin_network_namespace, processes, run};
use switchyard_tests::image::{self, Family, ImageBuilder, Index, LayerBuilder};
use switchyard_tests::leak_scan::LeakScan;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::{Access, RegistryFault};
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::{http, prereq, ustar};

#[test]
#[should_panic(expected = "apt-get install the-package")]
fn a_missing_program_is_named_with_its_package() {
    let _ = prereq::require("no-such-program-anywhere", "the-package");
}

#[test]
fn archives_are_deterministic_and_tar_reads_them() {
    let root = switchyard_tests::scratch::Scratch::new();
    let entries = [
        entry("dir", 0o755, ustar::TarEntryKind::Directory),
        entry(
            "dir/file",
            0o640,
            ustar::TarEntryKind::File(b"content\n".to_vec()),
        ),
        entry(
            "dir/hard",
            0o640,
            ustar::TarEntryKind::HardLink("dir/file".to_owned()),
        ),
        entry(
            "dir/soft",
            0o777,
            ustar::TarEntryKind::Symlink("file".to_owned()),
        ),
        entry("dir/pipe", 0o600, ustar::TarEntryKind::Fifo),
    ];
    let archive = ustar::archive(&entries);
    assert_eq!(archive, ustar::archive(&entries));
    let file = root.path().join("a.tar");
    fs::write(&file, &archive).unwrap();
    let status = Command::new("tar")
        .arg("-xf")
        .arg(&file)
        .arg("-C")
        .arg(root.path())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(
        fs::read_to_string(root.path().join("dir/hard")).unwrap(),
        "content\n"
    );
    assert_eq!(
        fs::read_link(root.path().join("dir/soft")).unwrap(),
        Path::new("file")
    );
    let listed = Command::new("tar").arg("-tvf").arg(&file).output().unwrap();
    assert_eq!(
        String::from_utf8(listed.stdout).unwrap().lines().count(),
        entries.len()
    );
}

#[test]
fn random_layers_differ_and_do_not_compress() {
    let one = image::random_layer(1 << 16, 1);
    let two = image::random_layer(1 << 16, 2);
    assert_ne!(one.diff_id, two.diff_id);
    assert_eq!(one.diff_id, image::random_layer(1 << 16, 1).diff_id);
    assert!(
        one.bytes.len() > 60_000,
        "{} bytes are left",
        one.bytes.len()
    );
}

#[test]
fn pushed_images_are_served_as_they_were_built() {
    let registry = Registry::start();
    let image = image::busybox()
        .family(Family::Docker)
        .user("app")
        .label("a", "b")
        .volume("/data")
        .build();
    let digest = registry.push("library/busybox:1", &image);
    assert_eq!(digest, image.manifest.digest);
    let by_tag = manifest(
        &registry,
        "library/busybox",
        "1",
        &image.manifest.media_type,
    );
    assert_eq!(by_tag.body, image.manifest.bytes);
    let path = format!("/v2/library/busybox/blobs/{}", image.config.digest);
    let config: Value =
        serde_json::from_slice(&http::get(registry.address(), &path).unwrap().body).unwrap();
    assert_eq!(config["config"]["User"], "app");
    assert_eq!(config["config"]["Volumes"], json!({ "/data": {} }));
    assert_eq!(
        config["rootfs"]["diff_ids"][0],
        image::busybox_layer().diff_id.as_str()
    );
}

#[test]
fn an_index_lists_its_platforms() {
    let registry = Registry::start();
    let layer = LayerBuilder::default()
        .file("a", "a", 0o644)
        .whiteout("dir/b")
        .build_uncompressed();
    let images = ["amd64", "arm64"].map(|arch| {
        ImageBuilder::new()
            .architecture(arch)
            .layer(layer.clone())
            .build()
    });
    let index = Index::new(Family::Oci, images.to_vec());
    let digest = registry.push_index("multi:latest", &index);
    let served = manifest(&registry, "multi", &digest, &index.manifest.media_type);
    let served: Value = serde_json::from_slice(&served.body).unwrap();
    assert_eq!(served["manifests"][1]["platform"]["architecture"], "arm64");
}

#[test]
fn references_and_mirrors_contain_the_registry_address() {
    let registry = Registry::start();
    let dir = switchyard_tests::scratch::Scratch::new();
    registry.mirror(dir.path(), "docker.io");
    let text = fs::read_to_string(dir.path().join("docker.io/hosts.toml")).unwrap();
    assert!(text.contains(&registry.address().to_string()), "{text}");
    assert_eq!(
        registry.reference("a/b:c"),
        format!("{}/a/b:c", registry.address())
    );
}

#[test]
fn registry_proxy_requires_credentials() {
    let registry = Registry::start_behind_proxy(Access::Basic {
        user: "u".to_owned(),
        password: "p".to_owned(),
    });
    let refused = http::get(registry.address(), "/v2/").unwrap();
    assert_eq!(
        (refused.status, refused.header("www-authenticate")),
        (401, Some("Basic realm=\"tests\""))
    );
    let headers = [("Authorization", "Basic dTpw")];
    assert_eq!(
        http::request(registry.address(), "GET", "/v2/", &headers, &[])
            .unwrap()
            .status,
        200
    );
    assert_eq!(registry.proxy().requests(), ["GET /v2/", "GET /v2/"]);
}

#[test]
fn registry_proxy_issues_single_repository_tokens() {
    let credentials = Some(("u".to_owned(), "p".to_owned()));
    let registry = Registry::start_behind_proxy(Access::Bearer { credentials });
    let image = ImageBuilder::new().build();
    registry.push("team/app:1", &image);
    let address = registry.address();
    let refused = http::get(address, "/v2/team/app/manifests/1").unwrap();
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(
        challenge.ends_with("scope=\"repository:team/app:pull\""),
        "{challenge}"
    );
    let path = "/token?service=tests&scope=repository%3Ateam%2Fapp%3Apull";
    assert_eq!(http::get(address, path).unwrap().status, 401);
    let given = http::request(
        address,
        "GET",
        path,
        &[("Authorization", "Basic dTpw")],
        &[],
    )
    .unwrap();
    let token: Value = serde_json::from_slice(&given.body).unwrap();
    let bearer = format!("Bearer {}", token["token"].as_str().unwrap());
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Accept", &image.manifest.media_type),
    ];
    let status = |path| {
        http::request(address, "GET", path, &headers, &[])
            .unwrap()
            .status
    };
    assert_eq!(status("/v2/team/app/manifests/1"), 200);
    assert_eq!(status("/v2/team/other/manifests/1"), 401);
}

#[test]
fn registry_proxy_injects_each_fault_once() {
    let registry = Registry::start_behind_proxy(Access::Open);
    let image = ImageBuilder::new()
        .layer(image::random_layer(4096, 7))
        .build();
    registry.push("a:1", &image);
    let path = format!("/v2/a/blobs/{}", image.layers[0].digest);
    let fetch = || http::get(registry.address(), &path);
    registry
        .proxy()
        .add_fault("/blobs/", RegistryFault::Status(503));
    assert_eq!(fetch().unwrap().status, 503);
    registry
        .proxy()
        .add_fault("/blobs/", RegistryFault::Corrupt);
    assert_ne!(
        image::digest(&fetch().unwrap().body),
        image.layers[0].digest
    );
    registry
        .proxy()
        .add_fault("/blobs/", RegistryFault::CutAfter(1000));
    assert!(fetch().is_err(), "a body that ends early is no answer");
    assert_eq!(
        image::digest(&fetch().unwrap().body),
        image.layers[0].digest
    );
    assert_eq!(registry.proxy().count("/blobs/"), 4);
}

#[test]
fn held_request_waits_for_release() {
    let registry = Registry::start_behind_proxy(Access::Open);
    registry.proxy().add_fault("/v2/", RegistryFault::Hold);
    let address = registry.address();
    let asked = std::thread::spawn(move || http::get(address, "/v2/").unwrap().status);
    assert!(switchyard_tests::host::eventually(
        std::time::Duration::from_secs(10),
        || { registry.proxy().count("/v2/") == 1 }
    ));
    assert!(!asked.is_finished());
    // The request is counted before it is held: it is released until it is through.
    assert!(switchyard_tests::host::eventually(
        std::time::Duration::from_secs(10),
        || {
            registry.proxy().release();
            asked.is_finished()
        }
    ));
    assert_eq!(asked.join().unwrap(), 200);
}

#[test]
fn private_roots_share_nothing() {
    let one = PrivateRoot::new();
    let two = PrivateRoot::new();
    assert_ne!(one.network().subnet(), two.network().subnet());
    assert_ne!(one.network().bridge(), two.network().bridge());
    assert_ne!(one.cgroup_name(), two.cgroup_name());
    assert!(one.network().bridge().len() <= 15 && one.bridge().bridge().len() <= 15);
    assert!(
        one.run()
            .join("containerd/containerd.sock.ttrpc")
            .as_os_str()
            .len()
            < 80
    );
}

#[test]
fn extra_configuration_overrides_the_private_root() {
    let root = PrivateRoot::new();
    root.write_config("[log]\nlevel = \"debug\"\n[cgroup]\ndriver = \"cgroupfs\"\n");
    let config: toml::Table = fs::read_to_string(root.config()).unwrap().parse().unwrap();
    assert_eq!(config["log"]["level"].as_str(), Some("debug"));
    assert_eq!(config["log"]["format"].as_str(), Some("text"));
    assert_eq!(config["cgroup"]["driver"].as_str(), Some("cgroupfs"));
    assert_eq!(config["paths"]["run"].as_str(), root.run().to_str());
}

#[test]
fn new_private_root_passes_the_leak_scan() {
    LeakScan::of(&PrivateRoot::new()).assert_clean();
}

#[test]
fn leak_scan_finds_leaks_and_dropping_the_root_removes_them() {
    let root = PrivateRoot::new();
    let path = root.path().to_owned();
    let cgroup = root.cgroup_name();
    let before = LeakScan::of(&root);

    let data = path.join("data");
    fs::create_dir_all(&data).unwrap();
    mount(
        Some("tmpfs"),
        &data,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    fs::create_dir_all(root.run().join("io").join("ab".repeat(32))).unwrap();
    nix::unistd::mkfifo(&root.run().join("out"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let group = cgroup_mount().join(&cgroup).join("cd".repeat(32));
    fs::create_dir_all(&group).unwrap();
    // It names no path of the root: only its cgroup shows that it belongs to the root.
    let mut asleep = command(&["sleep", "1000"]).spawn().unwrap();
    fs::write(group.join("cgroup.procs"), asleep.id().to_string()).unwrap();
    let named = format!("{}/containerd-shim-none", path.display());
    let mut shim = command(&["sleep", "1000"]).arg0(&named).spawn().unwrap();

    let found = LeakScan::of(&root).new_since(&before).join("\n");
    for part in [
        "mount ",
        "named pipe",
        "directory",
        "control group",
        "in a control group",
        "containerd-shim-none",
    ] {
        assert!(found.contains(part), "{part:?} is not in\n{found}");
    }
    // Children of this process stay as zombies until they are waited for, which the sweep must not mind.
    drop(root);
    assert!(!path.exists());
    assert!(mounts::below(&path).is_empty());
    assert!(cgroups::trees_named(&cgroup).is_empty());
    assert!(processes::belonging_to(&path).is_empty());
    assert_eq!(
        (asleep.wait().unwrap().code(), shim.wait().unwrap().code()),
        (None, None),
        "both were killed"
    );
}

#[test]
fn leaks_of_a_killed_test_run_are_removed_by_the_next() {
    let path = PathBuf::from(format!("/tmp/sw-{}", switchyard_tests::host::random_name()));
    fs::create_dir(&path).unwrap();
    // No process starts at the first tick of the machine but the first, and that one is not a test.
    fs::write(path.join("owner"), format!("{} 1", std::process::id())).unwrap();
    mount(
        Some("tmpfs"),
        &path.join("."),
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    fs::write(path.join("owner"), format!("{} 1", std::process::id())).unwrap();
    switchyard_tests::scratch::sweep_abandoned();
    assert!(!path.exists());
}

#[test]
fn leaked_pod_network_is_found_and_removed() {
    let root = PrivateRoot::new();
    let bridge = root.network().bridge().to_owned();
    let digits = bridge.trim_start_matches("swt").to_owned();
    let pin = root.path().join("pin");
    pin_network_namespace(&pin);
    let id = "ef".repeat(32);
    let result = cni(&root, "ADD", &id, &pin);
    let address: Ipv4Addr = result["ips"][0]["address"]
        .as_str()
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(root.network().contains(address));
    assert_ne!(address, root.network().gateway());

    let found = root.network().in_use().join("\n");
    for part in ["leased to", "interface", "iptables rule"] {
        assert!(found.contains(part), "{part:?} is not in\n{found}");
    }
    assert!(
        LeakScan::of(&root)
            .findings
            .iter()
            .any(|finding| finding.starts_with("pinned namespace"))
    );
    drop(root);
    assert!(!Path::new("/sys/class/net").join(&bridge).exists());
    let save = prereq::require("iptables-save", "iptables");
    assert!(!run(&mut Command::new(save)).contains(&digits));
}

#[test]
fn released_network_passes_the_leak_scan() {
    let root = PrivateRoot::new();
    let pin = root.path().join("pin");
    pin_network_namespace(&pin);
    let id = "01".repeat(32);
    cni(&root, "ADD", &id, &pin);
    cni(&root, "DEL", &id, &pin);
    assert_eq!(root.network().in_use(), Vec::<String>::new());
}

fn entry(path: &str, mode: u32, kind: ustar::TarEntryKind) -> ustar::TarEntry {
    ustar::TarEntry {
        path: path.to_owned(),
        mode,
        uid: 0,
        gid: 0,
        kind,
    }
}

fn manifest(
    registry: &Registry,
    repository: &str,
    reference: &str,
    media_type: &str,
) -> http::Response {
    let path = format!("/v2/{repository}/manifests/{reference}");
    http::request(
        registry.address(),
        "GET",
        &path,
        &[("Accept", media_type)],
        &[],
    )
    .expect("the registry answers")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A control group hierarchy that takes groups and processes of anybody: on v1, the one of process counts.
fn cgroup_mount() -> PathBuf {
    let mounts = mounts::all();
    let pids = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup" && mount.point.ends_with("pids"));
    let any = pids.or_else(|| mounts.iter().find(|mount| mount.kind == "cgroup2"));
    any.expect("control groups are mounted").point.clone()
}

/// Runs the first plugin of the root's network as a runtime does.
fn cni(root: &PrivateRoot, verb: &str, id: &str, namespace: &Path) -> Value {
    let list =
        fs::read(root.cni_conf().join("10-test.conflist")).expect("the root writes its network");
    let list: Value = serde_json::from_slice(&list).expect("a network list is JSON");
    let mut config = list["plugins"][0].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    config["name"] = list["name"].clone();
    let input = root.path().join("plugin.json");
    fs::write(&input, config.to_string()).expect("the root can be written");
    let output = Command::new(Path::new(prereq::CNI_BIN_DIR).join("bridge"))
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", namespace)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", prereq::CNI_BIN_DIR)
        .stdin(fs::File::open(input).expect("it was just written"))
        .output()
        .expect("the plugin starts");
    assert!(
        output.status.success(),
        "{verb}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}
