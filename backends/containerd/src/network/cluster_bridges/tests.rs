//! Bridges of clusters without plugins: who holds them, and what is on disk.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;
use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::spec::{BridgeAddresses, NetworkName};

use super::*;
use crate::base::config::NetworkConfig;
use crate::network::pod_bridge::tests as pod_bridge;
use crate::network::ranges::Ranges;

/// Addresses that no route of a node that runs tests has.
const SUBNETS: [&str; 2] = ["198.19.240.0/28", "198.19.240.16/28"];

fn id(number: u8) -> SandboxId {
    SandboxId::from_bytes([number; 32])
}

fn bridges(dir: &Path) -> Arc<ClusterBridges> {
    bridges_beside(dir, None)
}

fn bridges_beside(dir: &Path, pods: Option<Arc<PodBridge>>) -> Arc<ClusterBridges> {
    let own = OwnBridge {
        name: "swt-own".into(),
        subnets: vec!["198.19.241.0/24".parse().unwrap()],
        mtu: 0,
    };
    let plugin = json!({
        "type": "bridge", "bridge": own.name, "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "dataDir": dir, "ranges": [[{ "subnet": "198.19.241.0/24" }]] },
    });
    let list = json!({ "cniVersion": "1.0.0", "name": own.name, "plugins": [plugin] });
    let list = cni::NetworkList::parse(Path::new("list"), list.to_string().as_bytes());
    let network = NetworkConfig::default();
    let native = Arc::new(NativeBridges::new(&network, &list.unwrap()).unwrap());
    Arc::new(ClusterBridges::new(dir.to_owned(), own, native, pods))
}

fn network(id: &str, subnet: Option<&str>) -> ClusterBridge {
    let addresses =
        subnet.map(|text| BridgeAddresses::new(text.parse().unwrap(), None, None).unwrap());
    ClusterBridge {
        id: NetworkName::parse("id", id).unwrap(),
        name: format!("name of {id}"),
        addresses,
        ipv6: None,
        is_internal: false,
        has_masquerade: true,
        mtu: None,
    }
}

fn dirs(dir: &Path) -> Vec<String> {
    names_below(dir).unwrap()
}

#[tokio::test]
async fn network_is_there_until_its_last_holder_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let all = bridges(dir.path());
    let asked = network("n1", Some(SUBNETS[0]));
    let first = all.acquire(id(1), &asked).await.unwrap();
    assert_eq!(all.acquire(id(1), &asked).await.unwrap(), first);
    assert_eq!(all.acquire(id(2), &asked).await.unwrap().name, first.name);
    assert_eq!(dirs(dir.path()), [first.name.as_str()]);
    for (number, left) in [(3, 1), (1, 1), (1, 1), (2, 0), (2, 0)] {
        all.release(id(number)).await.unwrap();
        assert_eq!(dirs(dir.path()).len(), left, "{number}");
    }
    all.acquire(id(1), &network("n1", Some(SUBNETS[1])))
        .await
        .expect("the old addresses are forgotten");
}

#[tokio::test]
async fn predecessors_networks_are_found_and_unused_ones_removed() {
    let dir = tempfile::tempdir().unwrap();
    let all = bridges(dir.path());
    let held = all
        .acquire(id(1), &network("n1", Some(SUBNETS[0])))
        .await
        .unwrap();
    let unused = all.acquire(id(2), &network("n2", None)).await.unwrap();
    let holder = all.holders(&unused.name).join(id(2).to_string());
    fs::remove_file(holder).unwrap();
    // Killed before the file was written; and something that is none of ours.
    fs::create_dir(dir.path().join("swy-0123456789a")).unwrap();
    fs::create_dir(dir.path().join("other")).unwrap();

    let all = bridges(dir.path());
    assert_eq!(all.load().await.unwrap(), [id(1)]);
    let mut left = dirs(dir.path());
    left.sort();
    assert_eq!(left, ["other", &held.name]);
    let refused = all
        .acquire(id(3), &network("n1", Some(SUBNETS[1])))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    all.acquire(id(3), &network("n1", Some(SUBNETS[0])))
        .await
        .unwrap();

    // A damaged file is written again.
    fs::write(all.file(&held.name), "{").unwrap();
    let all = bridges(dir.path());
    assert_eq!(all.load().await.unwrap(), [id(1), id(3)]);
    let again = all
        .acquire(id(4), &network("n1", Some(SUBNETS[0])))
        .await
        .unwrap();
    assert_eq!(again, held);
    for number in [1, 3, 4] {
        all.release(id(number)).await.unwrap();
    }
    assert_eq!(dirs(dir.path()), ["other"]);
}

#[tokio::test]
async fn overlapping_networks_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let all = bridges(dir.path());
    all.acquire(id(1), &network("n1", Some(SUBNETS[0])))
        .await
        .unwrap();
    let text = async |subnet: &str| {
        let refused = all
            .acquire(id(2), &network("n2", Some(subnet)))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
        all.release(id(2)).await.unwrap();
        refused.report()
    };
    let of_other = text("198.19.240.0/27").await;
    assert!(
        of_other.contains("is taken on this node: network \"name of n1\" has 198.19.240.0/28"),
        "{of_other}"
    );
    let of_own = text("198.19.0.0/16").await;
    assert!(
        of_own.contains("the gateway's own bridge swt-own has 198.19.241.0/24"),
        "{of_own}"
    );
    assert_eq!(dirs(dir.path()).len(), 1);
    all.acquire(id(2), &network("n2", Some(SUBNETS[1])))
        .await
        .unwrap();
    let chosen = all.acquire(id(3), &network("n3", None)).await.unwrap();
    assert_ne!(
        chosen,
        all.acquire(id(3), &network("n4", None)).await.unwrap()
    );
}

#[tokio::test]
async fn network_that_cannot_be_removed_fails_its_last_holder_alone_and_is_removed_later() {
    let dir = tempfile::tempdir().unwrap();
    let all = bridges(dir.path());
    let stuck = all
        .acquire(id(1), &network("n1", Some(SUBNETS[0])))
        .await
        .unwrap();
    all.acquire(id(2), &network("n2", Some(SUBNETS[1])))
        .await
        .unwrap();
    // What is mounted on cannot be removed.
    let place = all.addresses(&stuck.name);
    mount(
        Some("tmpfs"),
        &place,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    let refused = all.release(id(1)).await;
    let other = all.release(id(2)).await;
    umount2(&place, MntFlags::MNT_DETACH).unwrap();
    assert!(refused.unwrap_err().report().contains(&stuck.name));
    other.expect("it held another network");
    assert_eq!(dirs(dir.path()), [stuck.name.as_str()]);
    all.release(id(3)).await.unwrap();
    assert_eq!(dirs(dir.path()), Vec::<String>::new());
}

/// A kubelet may tell a range of which networks have a part by then, without a route to it.
#[tokio::test]
async fn bridge_of_pods_cannot_have_the_subnets_of_networks_while_these_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let ranges = Arc::new(Ranges::load(dir.path().join("ranges")));
    let networks = dir.path().join("networks");
    fs::create_dir(&networks).unwrap();
    let pods = || {
        Arc::new(pod_bridge::bridge_with(
            &pod_bridge::network(&[]),
            Arc::clone(&ranges),
        ))
    };
    let check = |pods: &PodBridge, taken: Option<&str>| {
        let found = pods.list_if_free().map_err(|error| error.report());
        match taken {
            None => assert!(found.is_ok(), "{found:?}"),
            Some(name) => assert!(found.unwrap_err().contains(name), "{name}"),
        }
    };
    let before = pods();
    let all = bridges_beside(&networks, Some(Arc::clone(&before)));
    let [first, second] =
        [("n1", SUBNETS[0]), ("n2", SUBNETS[1])].map(|(id, subnet)| network(id, Some(subnet)));
    all.acquire(id(1), &first).await.unwrap();
    all.acquire(id(2), &second).await.unwrap();
    let told = vec!["198.19.240.0/27".parse().unwrap()];
    ranges.set(Owner::Kubernetes, told).await.unwrap();
    check(&before, Some("name of n"));
    all.release(id(1)).await.unwrap();
    check(&before, Some("name of n2"));

    let after = pods();
    let next = bridges_beside(&networks, Some(Arc::clone(&after)));
    check(&after, None);
    next.load().await.unwrap();
    check(&after, Some("name of n2"));
    next.release(id(2)).await.unwrap();
    check(&after, None);
}
