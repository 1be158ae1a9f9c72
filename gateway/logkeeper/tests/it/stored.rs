//! Listeners that are stored for the next daemon.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use switchyard_logkeeper::protocol::FaultKind;
use switchyard_logkeeper::{Error, StoreClient};
use tokio::time::{Duration, Instant, sleep};

use crate::support::{PATIENCE, Site};

async fn connect(site: &Site) -> StoreClient {
    StoreClient::connect(&site.config.socket)
        .await
        .unwrap()
        .expect("this logkeeper stores descriptors")
}

#[tokio::test]
async fn clients_of_a_daemon_that_is_gone_wait_for_the_next_one() {
    let site = Site::new();
    let keeper = site.start().await;
    let path = site.dir.path().join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut daemon = connect(&site).await;
    daemon.put("cri", "1:2", listener.as_fd()).await.unwrap();
    drop((listener, daemon));

    let client = UnixStream::connect(&path).expect("it waits in the queue");
    let mut successor = connect(&site).await;
    let listed = successor.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str()), (1, "cri"));
    assert!(successor.take("nomad").await.unwrap().is_none());
    let taken = successor.take("cri").await.unwrap().unwrap();
    assert_eq!(taken.note, "1:2");
    let listener = UnixListener::from(taken.descriptor);
    let (accepted, _) = listener.accept().unwrap();
    drop(accepted);
    assert_eq!(
        std::io::Read::read(&mut &client, &mut [0]).unwrap(),
        0,
        "the successor has accepted and closed it"
    );
    // The connection is as usable as before, and what was taken can be taken again.
    assert!(successor.take("cri").await.unwrap().is_some());
    keeper.stop().await;
}

#[tokio::test]
async fn descriptor_that_replaces_another_closes_it() {
    let site = Site::new();
    let keeper = site.start().await;
    let former = site.dir.path().join("former.sock");
    let later = site.dir.path().join("later.sock");
    let mut daemon = connect(&site).await;
    for path in [&former, &later] {
        let listener = UnixListener::bind(path).unwrap();
        daemon.put("cri", "", listener.as_fd()).await.unwrap();
    }
    let refused = UnixStream::connect(&former).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    UnixStream::connect(&later).unwrap();
    keeper.stop().await;
    let refused = UnixStream::connect(&later).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn what_is_no_socket_or_has_a_malformed_name_is_refused() {
    let site = Site::new();
    let keeper = site.start().await;
    let mut daemon = connect(&site).await;
    let file = std::fs::File::open(site.dir.path()).unwrap();
    let listener = UnixListener::bind(site.dir.path().join("a.sock")).unwrap();
    for (name, descriptor) in [("file", file.as_fd()), ("a/b", listener.as_fd())] {
        let error = daemon.put(name, "", descriptor).await.unwrap_err();
        assert!(
            matches!(error, Error::Refused { ref fault, .. } if fault.kind == FaultKind::InvalidArgument),
            "{error}"
        );
    }
    assert!(daemon.list().await.unwrap().is_empty());
    daemon.put("a", "", listener.as_fd()).await.unwrap();
    keeper.stop().await;
}

#[tokio::test]
async fn older_logkeeper_is_asked_for_nothing() {
    let site = Site::new();
    let listener = UnixListener::bind(&site.config.socket).unwrap();
    let older = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let mut client = std::io::BufReader::new(client);
        let mut hello = String::new();
        std::io::BufRead::read_line(&mut client, &mut hello).unwrap();
        std::io::Write::write_all(client.get_mut(), b"{\"ok\":{\"version\":1,\"pid\":7}}\n")
            .unwrap();
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut client, &mut rest).unwrap();
        rest
    });
    let store = StoreClient::connect(&site.config.socket).await.unwrap();
    assert!(store.is_none());
    assert_eq!(older.join().unwrap(), "");
}

#[tokio::test]
async fn end_of_the_connection_is_noticed_on_both_sides() {
    let site = Site::new();
    let keeper = site.start().await;
    let listener = UnixListener::bind(site.dir.path().join("a.sock")).unwrap();
    let mut daemon = connect(&site).await;
    daemon.put("a", "", listener.as_fd()).await.unwrap();
    let mut other = connect(&site).await;
    assert!(other.list().await.unwrap()[0].claimed);
    drop(daemon);
    let deadline = Instant::now() + PATIENCE;
    while other.list().await.unwrap()[0].claimed {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(5)).await;
    }
    keeper.stop().await;
    tokio::time::timeout(PATIENCE, other.broken())
        .await
        .unwrap();
}
