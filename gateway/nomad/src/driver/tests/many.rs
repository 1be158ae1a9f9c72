//! More tasks than any node has, all watched over one connection.

use futures::future::join_all;
use hyper_util::rt::TokioIo;
use nomad::driver_client::DriverClient;
use nomad::driver_server::DriverServer;
use switchyard_authority::AuthorityFilter;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Server};

use super::*;
use crate::transport::{CONNECTION_WINDOW, STREAM_WINDOW};

const TASKS: usize = 5_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_tasks_are_waited_for_over_one_connection() {
    let fixture = fixture().await;
    let ids = start_tasks(&fixture).await;

    let (client, served) = one_connection(&fixture).await;

    let stats = join_all(ids.iter().map(|id| {
        let mut client = client.clone();
        let collection_interval = Some(prost_types::Duration {
            seconds: 3600,
            nanos: 0,
        });
        let message = nomad::TaskStatsRequest {
            task_id: id.clone(),
            collection_interval,
        };
        async move {
            client
                .task_stats(call(message))
                .await
                .expect("it is watched")
                .into_inner()
        }
    }));
    let mut stats = stats.await;
    for watched in &mut stats {
        let first = watched
            .message()
            .await
            .expect("it continues")
            .expect("it has not ended");
        assert!(first.stats.is_some());
    }
    let waits: Vec<_> = ids
        .iter()
        .map(|id| {
            let mut client = client.clone();
            let message = nomad::WaitTaskRequest {
                task_id: id.clone(),
            };
            tokio::spawn(async move {
                client
                    .wait_task(call(message))
                    .await
                    .map(Response::into_inner)
            })
        })
        .collect();
    // Meanwhile other calls are answered.
    let message = nomad::InspectTaskRequest {
        task_id: ids[0].clone(),
    };
    client
        .clone()
        .inspect_task(call(message))
        .await
        .expect("it is answered");
    for id in &ids {
        fixture.fake.exit(fixture.task(id), 7).expect("it runs");
    }
    for wait in waits {
        assert_eq!(
            code(
                &wait
                    .await
                    .expect("it does not panic")
                    .expect("it is answered")
            ),
            7
        );
    }
    for watched in &mut stats {
        while watched.message().await.expect("it continues").is_some() {}
    }
    served.abort();
}

async fn start_tasks(fixture: &DriverFixture) -> Vec<String> {
    let mut ids = Vec::new();
    for number in 0..TASKS {
        let name = format!("web-{number}");
        for part in ["local", "secrets"] {
            std::fs::create_dir_all(fixture.dir.path().join(ALLOC).join(&name).join(part))
                .expect("there is room");
        }
        let mut request = fixture.request("00000001", &["serve"]);
        request.id = format!("{ALLOC}/{name}/00000001");
        request.name = name;
        fixture.start(&request).await.expect("it starts");
        ids.push(request.id);
    }
    ids
}

/// Serves the driver on one connection, with the limits of the launcher. Returns the client and the server.
async fn one_connection(
    fixture: &DriverFixture,
) -> (
    DriverClient<Channel>,
    JoinHandle<Result<(), tonic::transport::Error>>,
) {
    let (ours, theirs) = UnixStream::pair().expect("there are files");
    let incoming = futures::stream::iter([Ok::<_, std::io::Error>(AuthorityFilter::new(theirs))])
        .chain(futures::stream::pending());
    let mut server = crate::tune(Server::builder());
    let served = server
        .add_service(DriverServer::new(fixture.driver.clone()))
        .serve_with_incoming(incoming);
    let served = tokio::spawn(served);
    let mut only = Some(ours);
    let connector = tower::service_fn(move |_| {
        let stream = only
            .take()
            .map(TokioIo::new)
            .ok_or(std::io::ErrorKind::NotConnected);
        std::future::ready(stream.map_err(std::io::Error::from))
    });
    let endpoint = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let client = DriverClient::new(
        endpoint
            .connect_with_connector(connector)
            .await
            .expect("it is served"),
    );
    (client, served)
}
