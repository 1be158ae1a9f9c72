//! Tests of what the journals of a former daemon say of attachments.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use super::*;
use crate::base::layout::Layout;

/// Written by the first version with this driver. The file is not changed.
const GOLDEN: &str = include_str!("golden/journal.json");

fn bridge() -> NativeBridges {
    bridge_with(PinChoice::default())
}

fn bridge_with(pin: PinChoice) -> NativeBridges {
    let own = list("switchyard0", "172.26.80.0/20");
    let mut network = NetworkConfig::default();
    network.bridge.pin = pin;
    NativeBridges::new(&network, &own).unwrap()
}

/// The configuration list of a bridge.
fn list(name: &str, subnet: &str) -> cni::NetworkList {
    let bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "dataDir": "/run/a", "ranges": [[{ "subnet": subnet }]] },
    });
    let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [bridge] });
    cni::NetworkList::parse(Path::new("list"), list.to_string().as_bytes()).unwrap()
}

/// The request of a journal, and its result.
fn parts() -> (&'static str, &'static str) {
    GOLDEN.split_once('\n').unwrap()
}

#[test]
fn journal_says_who_has_which_addresses_and_ports() {
    let (bridge, id) = (bridge(), SandboxId::random());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cni.json");
    let (request, result) = parts();
    let other = GOLDEN.replacen("\"native\"", "\"ipvlan\"", 1);
    let plugins = GOLDEN.replacen(",\"switchyard.driver\":\"native\"", "", 1);
    let of_six = GOLDEN.replacen("172.26.80.2/20", "fd00::2/64", 1);
    for (text, expected) in [
        (
            GOLDEN.to_owned(),
            Some((Some(vec!["172.26.80.2"]), vec![8080, 9090])),
        ),
        (of_six, Some((Some(vec!["fd00::2"]), vec![8080, 6060]))),
        // A kill came before it was attached, or while the result was written.
        (request.to_owned(), Some((None, vec![8080, 9090]))),
        (
            format!("{request}\n{}", &result[..result.len() / 2]),
            Some((None, vec![8080, 9090])),
        ),
        (
            format!("{request}\n{{\"ips\":7}}"),
            Some((None, vec![8080, 9090])),
        ),
        (other, None),
        (plugins, None),
    ] {
        fs::write(&path, &text).unwrap();
        let saved = cni::Saved::read(&path).unwrap().unwrap();
        let found = bridge.attachment(id, &saved, &path).unwrap();
        let found = found.map(|found| found.attachment);
        if let Some(found) = &found {
            assert_eq!(found.holder, holder(id).unwrap());
        }
        let found = found.map(|found| {
            let ports: Vec<u16> = found.ports.iter().map(|port| port.port).collect();
            (found.addresses, ports)
        });
        let parsed = |ips: Vec<&str>| -> Vec<IpAddr> {
            ips.into_iter().map(|ip| ip.parse().unwrap()).collect()
        };
        let expected = expected.map(|(addresses, ports)| (addresses.map(parsed), ports));
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn attachments_of_all_journals_are_taken_over_and_an_unread_one_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
    let sandbox = |journal: Option<&str>| {
        let id = SandboxId::random();
        let dirs = layout.sandbox(id);
        fs::create_dir_all(&dirs.state).unwrap();
        if let Some(text) = journal {
            fs::write(dirs.cni_journal(), text).unwrap();
        }
        id
    };
    let bridge = bridge();
    let is = |all: &[SandboxId], has_unread: bool| {
        let found = bridge.find(&layout, true).unwrap();
        let holders: BTreeSet<String> = found
            .all
            .iter()
            .map(|one| one.attachment.holder.container_id().to_owned())
            .collect();
        let expected: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(holders, expected);
        assert_eq!(found.has_unread, has_unread);
    };
    is(&[], false);
    sandbox(None);
    sandbox(Some(""));
    let plugins = GOLDEN.replacen(",\"switchyard.driver\":\"native\"", "", 1);
    sandbox(Some(&plugins));
    is(&[], false);
    // The second one was cut off before its addresses were on record.
    let all = [sandbox(Some(GOLDEN)), sandbox(Some(parts().0))];
    is(&all, false);
    let other = GOLDEN.replacen("\"native\"", "\"ipvlan\"", 1);
    let damaged = format!("{}\n{{\"ips\":7}}", parts().0);
    let no_bridge = GOLDEN.replacen("\"name\":\"switchyard0\"", "\"name\":\"other0\"", 1);
    for unread in [
        other.as_str(),
        "nonsense",
        damaged.as_str(),
        no_bridge.as_str(),
    ] {
        let id = sandbox(Some(unread));
        is(&all, true);
        fs::remove_dir_all(layout.sandbox(id).state).unwrap();
        is(&all, false);
    }
}

/// The journal of a sandbox with what it says of pins.
fn pinned(said: &str) -> String {
    let driver = "\"switchyard.driver\":\"native\"";
    GOLDEN.replacen(driver, &format!("{driver},\"switchyard.pinned\":{said}"), 1)
}

#[test]
fn sandbox_is_taken_over_pinned_as_its_journal_its_tasks_and_the_key_say() {
    use PinChoice::{All, Auto, None as NoPins};
    let mac = Some("02:42:ac:1a:50:02");
    let written = ["true", "false"].map(pinned);
    let [whole, unpinned] = written.each_ref().map(String::as_str);
    let (cut_off, _) = whole.split_once('\n').unwrap();
    for (choice, journal, has_net_admin, expected) in [
        (Auto, whole, false, mac),
        (Auto, whole, true, None),
        // Of a version before pins, or of one that pinned none.
        (Auto, GOLDEN, false, None),
        (Auto, unpinned, false, None),
        (Auto, cut_off, false, None),
        (All, whole, true, mac),
        (All, GOLDEN, false, None),
        (NoPins, whole, false, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        let dirs = layout.sandbox(SandboxId::random());
        fs::create_dir_all(&dirs.state).unwrap();
        fs::write(dirs.cni_journal(), journal).unwrap();
        if has_net_admin {
            fs::write(dirs.net_admin_mark(), "").unwrap();
        }
        let found = bridge_with(choice).find(&layout, true).unwrap();
        assert!(!found.has_unread, "{journal}");
        let pins = found.all.iter().map(|one| one.attachment.pin);
        let pins: Vec<_> = pins.map(|pin| pin.map(|mac| mac.to_string())).collect();
        let expected = expected.map(str::to_owned);
        assert_eq!(pins, [expected], "{choice:?} {has_net_admin} {journal}");
    }
}

/// The task may be of another sandbox, which joins the network of this one while it is attached. The steps are those of an attachment, of which the
/// kernel does some.
#[test]
fn attached_sandbox_has_no_pins_behind_a_task_with_net_admin_whenever_that_comes() {
    for task_comes in 0..=4 {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        let dirs = layout.sandbox(SandboxId::random());
        fs::create_dir_all(&dirs.state).unwrap();
        let mut is_asked = false;
        let mut has_pins = false;
        for step in 0..=4 {
            if step == task_comes && pins::note_if_pinned(&dirs).unwrap().is_some() {
                has_pins = false;
            }
            match step {
                0 => is_asked = !pins::has_net_admin(&dirs).unwrap(),
                1 => fs::write(dirs.cni_journal(), pinned(&is_asked.to_string())).unwrap(),
                2 => has_pins = is_asked,
                3 if has_pins => {
                    let one = AttachedSandbox {
                        driver: Arc::clone(&bridge().own),
                        holder: Holder::new("a", INTERFACE).unwrap(),
                        dirs: dirs.clone(),
                    };
                    has_pins = pins::noted(vec![one]).unwrap().is_empty();
                }
                _ => {}
            }
        }
        assert!(!has_pins, "before step {task_comes}");
        assert!(pins::has_net_admin(&dirs).unwrap());
    }
}

/// The same while a later daemon reads the journal, adds the pins, and looks at the notes.
#[test]
fn sandbox_taken_over_has_no_pins_behind_a_task_with_net_admin_whenever_that_comes() {
    for task_comes in 0..=3 {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        let dirs = layout.sandbox(SandboxId::random());
        fs::create_dir_all(&dirs.state).unwrap();
        fs::write(dirs.cni_journal(), pinned("true")).unwrap();
        let bridges = bridge();
        let mut found = Vec::new();
        let mut has_pins = false;
        for step in 0..=3 {
            if step == task_comes && pins::note_if_pinned(&dirs).unwrap().is_some() {
                has_pins = false;
            }
            match step {
                0 => found = bridges.find(&layout, true).unwrap().all,
                1 => has_pins = found.iter().any(|one| one.attachment.pin.is_some()),
                2 => {
                    let attached = found.iter().map(|one| one.sandbox(&layout)).collect();
                    has_pins &= pins::noted(attached).unwrap().is_empty();
                }
                _ => {}
            }
        }
        assert_eq!(found.len(), 1, "before step {task_comes}");
        assert!(!has_pins, "before step {task_comes}");
        assert!(pins::has_net_admin(&dirs).unwrap());
    }
}

/// The pins may be there since a look before the note, whose own look behind the pins failed.
#[test]
fn each_look_finds_the_sandboxes_of_tasks_with_net_admin() {
    for (said, has_net_admin, expected) in [
        ("true", true, 1),
        ("true", false, 0),
        // It has no pins, which is looked at in the tables.
        ("false", true, 1),
        ("false", false, 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        let dirs = layout.sandbox(SandboxId::random());
        fs::create_dir_all(&dirs.state).unwrap();
        fs::write(dirs.cni_journal(), pinned(said)).unwrap();
        if has_net_admin {
            fs::write(dirs.net_admin_mark(), "").unwrap();
        }
        let found = bridge().find(&layout, false).unwrap();
        let attached = found.all.iter().map(|one| one.sandbox(&layout)).collect();
        let noted = pins::noted(attached).unwrap();
        assert_eq!(noted.len(), expected, "{said} {has_net_admin}");
    }
}

/// Else it would be pinned although a task of it may have been promised otherwise.
#[test]
fn sandbox_whose_mark_cannot_be_looked_at_counts_as_unread() {
    for (said, is_unreadable, expected) in [
        ("true", false, (1, false)),
        ("true", true, (0, true)),
        // Nothing depends on the mark.
        ("false", true, (1, false)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
        let dirs = layout.sandbox(SandboxId::random());
        fs::create_dir_all(&dirs.state).unwrap();
        fs::write(dirs.cni_journal(), pinned(said)).unwrap();
        let mark = dirs.net_admin_mark();
        if is_unreadable {
            // The kernel gives up following it.
            std::os::unix::fs::symlink(&mark, &mark).unwrap();
        }
        let found = bridge().find(&layout, true).unwrap();
        let found = (found.all.len(), found.has_unread);
        assert_eq!(found, expected, "{said} {is_unreadable}");
    }
}

/// The kernel could see to it when they were attached: it is only asked for new ones.
#[test]
fn what_is_pinned_stays_so_although_the_kernel_refuses() {
    let mut bridge = bridge_with(PinChoice::Auto);
    bridge.pin_fault = Some("no buffer space".to_owned());
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
    let dirs = layout.sandbox(SandboxId::random());
    fs::create_dir_all(&dirs.state).unwrap();
    fs::write(dirs.cni_journal(), pinned("true")).unwrap();
    let found = bridge.find(&layout, true).unwrap();
    let pins: Vec<_> = found.all.iter().map(|one| one.attachment.pin).collect();
    assert!(matches!(pins[..], [Some(_)]), "{pins:?}");
}

#[test]
fn driver_that_nobody_asks_for_is_not_chosen() {
    let bridge = bridge();
    assert!(!bridge.is_wanted() && !bridge.is_chosen());
    assert_eq!((bridge.chosen(), bridge.fault()), ("cni", None));
    assert_eq!(bridge.pin_fault(), None, "the kernel was not asked");
    assert!(!bridge.in_use.is_cancelled());
}

#[test]
fn error_of_plugins_says_too_what_the_kernel_lacks() {
    let missing = || Error::unavailable("plugin bridge is not in /opt/cni/bin".to_owned());
    let mut bridges = bridge();
    let text = |bridges: &NativeBridges| bridges.explain("switchyard0", missing()).report();
    assert_eq!(text(&bridges), missing().report());
    bridges.fault = Some("it has no nf_tables".to_owned());
    let text = text(&bridges);
    for part in [
        "network switchyard0",
        "it has no nf_tables",
        "plugin bridge is not in /opt/cni/bin",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(bridges.explain("x", missing()).kind(), missing().kind());
}

#[test]
fn each_bridge_has_a_driver_until_it_is_described_otherwise_or_forgotten() {
    let bridges = bridge();
    let of = |name: &str, subnet: &str| bridges.driver_of(&list(name, subnet)).unwrap();
    let first = of("swy-1", "10.7.0.0/24");
    for (driver, is_first) in [
        (of("swy-1", "10.7.0.0/24"), true),
        (of("swy-2", "10.8.0.0/24"), false),
        (of("swy-1", "10.7.0.0/25"), false),
        // The configuration decides about the own one.
        (of("switchyard0", "10.7.0.0/24"), false),
    ] {
        assert_eq!(Arc::ptr_eq(&first, &driver), is_first, "{driver:?}");
    }
    let own = of("switchyard0", "10.7.0.0/24");
    assert_eq!(*own.settings(), *bridges.own.settings());
    let second = of("swy-2", "10.8.0.0/24");
    bridges.forget_bridge("swy-2").unwrap();
    assert!(!Arc::ptr_eq(&second, &of("swy-2", "10.8.0.0/24")));
}
