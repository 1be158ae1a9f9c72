//! Tests of groups of devices and of bridges.

use super::*;

#[test]
fn device_configuration_parses_as_documented_and_round_trips() {
    let documented = DOCUMENTED
        .lines()
        .find_map(|line| line.strip_prefix("# groups = "))
        .unwrap();
    let etc = Etc::new(&format!("version = 1\n[devices]\ngroups = {documented}\n"));
    etc.drop_in("10.toml", "version = 1\n[network.bridge]\nname = \"br7\"\n");
    let loaded = load(&etc.sources()).unwrap();
    let [group] = &loaded.effective.config.devices.groups[..] else {
        panic!("{:?}", loaded.effective.config.devices)
    };
    assert_eq!(
        (&*group.vendor, &*group.kind, &*group.env),
        ("acme", "tpu", "ACME_DEVICES")
    );
    assert_eq!(
        (
            &*loaded.effective.config.network.bridge.name,
            loaded.effective.config.network.bridge.mtu
        ),
        ("br7", 0)
    );
    let back: Config = toml::from_str(&loaded.effective.dump(true)).unwrap();
    assert_eq!(back, loaded.effective.config);
    let documented = DOCUMENTED
        .lines()
        .find_map(|line| line.strip_prefix("# resources = "))
        .unwrap();
    let etc = Etc::new(&format!(
        "version = 1\n[devices.host]\nresources = {documented}\n"
    ));
    let loaded = load(&etc.sources()).unwrap();
    let [gpu] = &loaded.effective.config.devices.host.resources[..] else {
        panic!("{:?}", loaded.effective.config.devices)
    };
    assert_eq!(
        (&*gpu.name, gpu.quota["kubernetes"], gpu.quota["nomad"]),
        ("nvidia.com/gpu", 2, 1)
    );
    let kinds = |loaded: &Loaded| loaded.effective.config.devices.swarm_kinds();
    assert_eq!(kinds(&loaded)["nvidia.com/gpu"], "NVIDIA-GPU");
    let back: Config = toml::from_str(&loaded.effective.dump(true)).unwrap();
    assert_eq!(back, loaded.effective.config);
    let table = "version = 1\n[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\npaths = [\"/dev/a*\"]\n";
    let loaded = load(&Etc::new(table).sources()).unwrap();
    assert_eq!(
        (
            &*loaded.effective.config.devices.groups[0].name,
            &*loaded.effective.config.devices.groups[0].permissions
        ),
        ("default", "rw")
    );
    assert_eq!(kinds(&loaded).len(), 0);
    let with_kind = load(&Etc::new(&format!("{table}swarm_kind = \"gpu\"\n")).sources()).unwrap();
    assert_eq!(kinds(&with_kind)["acme/tpu/default"], "gpu");
    let wrong = message(&format!("{table}swarm_kind = \"acme.com/gpu\"\n"));
    assert!(wrong.contains("devices.groups: swarm_kind: "), "{wrong}");
    assert!(message(&format!("{table}path = 1\n")).contains("did you mean \"paths\"?"));
}

#[test]
fn groups_that_kubelets_and_nomad_compete_for_are_named_in_one_warning() {
    let group = |number: usize, quota: &str| {
        format!(
            "[[devices.groups]]\nvendor = \"acme.com\"\ntype = \"t{number}\"\npaths = [\"/dev/t{number}\"]\n\
             resource = \"acme.com/t{number}\"\n{quota}"
        )
    };
    let warnings = |groups: &str| {
        let etc = Etc::new(&format!(
            "version = 1\n[nomad]\nenabled = true\n[devices.kubelet]\nenabled = true\n{groups}"
        ));
        load(&etc.sources()).unwrap().warnings
    };
    let quota = "quota = { kubernetes = 1, nomad = 1 }\n";
    assert_eq!(warnings(&group(0, quota)), Vec::<String>::new());
    let [two] = &*warnings(&[group(0, ""), group(1, quota), group(2, "")].concat()) else {
        panic!("there is one warning")
    };
    assert!(
        two.contains("(as acme.com/t0), ") && two.contains("(as acme.com/t2): offered"),
        "{two}"
    );
    assert!(!two.contains("t1") && !two.contains("more"), "{two}");
    let many: Vec<_> = (0..60).map(|number| group(number, "")).collect();
    let [many] = &*warnings(&many.concat()) else {
        panic!("there is one warning")
    };
    assert!(
        many.contains("(as acme.com/t4) and 55 more: offered"),
        "{many}"
    );
}

#[test]
fn invalid_bridge_or_device_is_rejected_with_its_line() {
    let error = message("version = 1\n[network.bridge]\nsubnets = []\n");
    assert!(
        error.starts_with("config.toml:2: network.bridge: subnets: "),
        "{error}"
    );
    for (keys, expected) in [
        ("name = \"switchyard0\"", "name: "),
        ("mtu = 7", "mtu: "),
        ("subnets = [\"172.26.80.0/24\"]", "subnets: "),
        ("subnets = [\"ten\"]", "subnet: "),
    ] {
        let error = message(&format!("version = 1\n[network.pods]\n{keys}\n"));
        let beginning = format!("config.toml:2: network.pods: {expected}");
        assert!(error.starts_with(&beginning), "{error}");
    }
    assert_eq!(
        message("version = 1\n[cri]\nnetwork = \"native\"\n"),
        "config.toml:3: cri.network: expected one of \"cni\", \"bridge\", found \"native\""
    );
    for driver in ["ipvlan", "CNI", "none", ""] {
        let text = format!("version = 1\n[network.bridge]\nmtu = 0\ndriver = \"{driver}\"\n");
        let expected = "config.toml:4: network.bridge.driver: expected one of \"cni\", \"native\"";
        assert_eq!(message(&text), format!("{expected}, found {driver:?}"));
    }
    for pin in ["any", "None", "true", ""] {
        let text = format!("version = 1\n[network.bridge]\nmtu = 0\npin = \"{pin}\"\n");
        let expected =
            "config.toml:4: network.bridge.pin: expected one of \"auto\", \"all\", \"none\"";
        assert_eq!(message(&text), format!("{expected}, found {pin:?}"));
    }
    let unclosed = message("version = 1\n[network.bridge]\ndriver = \"cni\"\npin = \"all\"\n");
    let expected = "config.toml:4: network.bridge.pin: only the driver \"native\" closes this";
    assert!(unclosed.starts_with(expected), "{unclosed}");
    for server in ["dns.example", "127.0.0.53", "fe80::1%eth0", "::1"] {
        let error = message(&format!("version = 1\n[network]\ndns = [\"{server}\"]\n"));
        assert!(error.starts_with("config.toml:3: network.dns: "), "{error}");
        assert!(error.contains(server), "{error}");
    }
    let error = message(
        "version = 1\n[[devices.groups]]\nvendor = \"a/b\"\ntype = \"tpu\"\npaths = [\"/dev/a*\"]\n",
    );
    assert!(
        error.starts_with("config.toml:2: devices.groups: vendor: "),
        "{error}"
    );
    let error = message(
        "version = 1\n[[devices.groups]]\nvendor = \"a\"\ntype = \"tpu\"\npaths = [\"/dev/a*\"]\nattributes = { healthy_slots = \"9\" }\n",
    );
    assert!(
        error.contains("healthy_slots is set by the gateway"),
        "{error}"
    );
}
