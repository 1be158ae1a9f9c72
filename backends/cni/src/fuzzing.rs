//! Fuzz targets: properties that hold for any bytes of plugins, configuration files and journals. Called only
//! by fuzzers and tests.

use std::path::Path;

use crate::conf::{NetworkList, is_name, type_of};
use crate::journal::{Saved, driver_of_journal};
use crate::result::CniResult;
use crate::version::SpecVersion;

/// Reads bytes as the output of a plugin: a parsed result parses the same again, and every address is within
/// its bounds.
///
/// # Panics
/// If that does not hold.
pub fn result(data: &[u8]) {
    for wanted in SpecVersion::ALL {
        let Ok(result) = CniResult::parse(data, wanted) else {
            continue;
        };
        for ip in &result.ips {
            assert!(
                ip.address.prefix <= if ip.address.ip.is_ipv4() { 32 } else { 128 },
                "{ip:?}"
            );
            assert!(
                ip.interface
                    .is_none_or(|index| index < result.interfaces.len()),
                "{ip:?}"
            );
        }
        assert!(result.pod_ips("eth0").len() <= result.ips.len());
        let again =
            CniResult::from_value(result.raw.clone(), wanted).expect("it was a result before");
        assert_eq!(again, result);
    }
}

/// Reads bytes as a configuration file, as a list and as a single plugin: no name leads out of a directory,
/// and the document that the journal stores names the same network and plugins.
///
/// # Panics
/// If that does not hold.
pub fn conf(data: &[u8]) {
    let path = Path::new("/etc/cni/net.d/10-net.conflist");
    let single = NetworkList::parse_single(path, data).ok();
    for list in NetworkList::parse(path, data).into_iter().chain(single) {
        assert!(
            is_name(&list.name) && !list.name.contains('/'),
            "{:?}",
            list.name
        );
        assert!(!list.plugins.is_empty());
        for plugin in &list.plugins {
            let kind = type_of(plugin);
            assert!(
                !kind.is_empty() && !kind.contains(['/', '\0']) && kind != "..",
                "{kind:?}"
            );
        }
        let document = list.to_document().to_string();
        let again = NetworkList::parse(path, document.as_bytes()).expect("it is our own document");
        let types = |list: &NetworkList| -> Vec<String> {
            list.plugins
                .iter()
                .map(|plugin| type_of(plugin).to_owned())
                .collect()
        };
        assert_eq!(types(&again), types(&list));
        let head = |list: &NetworkList| (list.name.clone(), list.cni_version, list.disable_check);
        assert_eq!(head(&again), head(&list));
    }
}

/// Reads bytes as the journal of an attachment. A journal that is truncated anywhere, as by a full disk or a
/// power cut, gives the same attachment or none, and is never reported as damaged; the names in it lead out
/// of no directory; and who asks for its driver alone hears the same.
///
/// # Panics
/// If that does not hold.
pub fn journal(data: &[u8]) {
    let driver = driver_of_journal(data);
    let path = Path::new("/var/lib/switchyard/sandboxes/id/cni.json");
    let Ok(Some(saved)) = Saved::parse(path, data) else {
        return;
    };
    let driver = driver.expect("it is a journal");
    assert_eq!(driver.as_deref(), saved.driver());
    let attachment = saved.attachment();
    if let Ok(list) = saved.list(path) {
        assert!(
            is_name(&list.name) && !list.name.contains('/'),
            "{:?}",
            list.name
        );
        if let Ok(Some(result)) = saved.result(path) {
            assert!(result.pod_ips("eth0").len() <= result.ips.len());
        }
    }
    for cut in [1, 2, 3, 4, 5, 8, 16, 64].map(|part| data.len() - data.len() / part) {
        let cut = Saved::parse(path, &data[..cut]).expect("what is cut short is not damaged");
        assert!(cut.is_none_or(|cut| cut.attachment() == attachment));
    }
}
