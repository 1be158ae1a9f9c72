//! Runs a redeemed session over its transport, and ends it when it has been idle for too long.

use std::pin::pin;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::config::Config;
use crate::io::Io;
use crate::request::Redeemed;
use crate::upgrade::{Carrier, Forwarding};
use crate::{port_forward, remote_command, spdy, websocket};

/// Runs a session to its end. It ends early when `end` is cancelled, or when it was idle for too long.
pub(crate) async fn carry(redeemed: Redeemed, io: Io, config: &Config, end: CancellationToken) {
    let activity = Arc::clone(&io.activity);
    let mut session = pin!(session(redeemed, io, config, end.clone()));
    tokio::select! {
        () = &mut session => {}
        () = activity.idle(config.idle_timeout) => {
            debug!("a streaming session was idle for too long");
            // The session ends by itself then, because it has to hang up its process.
            end.cancel();
            session.await;
        }
    }
}

async fn session(redeemed: Redeemed, io: Io, config: &Config, end: CancellationToken) {
    let limit = config.stream_creation_timeout;
    match redeemed {
        Redeemed::Process {
            kind: _,
            upgrade,
            streams,
            command,
        } => {
            let version = upgrade.version;
            let form = upgrade.version.form();
            match upgrade.carrier {
                Carrier::Spdy => {
                    let session = async |incoming| {
                        let channels =
                            remote_command::collect(incoming, streams, version, limit, &end).await;
                        match channels {
                            Some(channels) => {
                                remote_command::run(channels, command, form, &end).await
                            }
                            None => debug!("a client did not open the streams of its session"),
                        }
                    };
                    spdy::serve(io, end.clone(), session).await;
                }
                Carrier::WebSocket { .. } => {
                    websocket::remote_command(io, streams, version, command, end).await;
                }
            }
        }
        Redeemed::Ports {
            upgrade,
            ports,
            dial,
        } => {
            let io = match (upgrade.carrier, upgrade.version) {
                (Carrier::Spdy, _) => io,
                (Carrier::WebSocket { .. }, Forwarding::Tunnel) => websocket::tunnel(io).await,
                (Carrier::WebSocket { .. }, Forwarding::Messages) => {
                    return websocket::port_forward(io, &ports, &*dial, end).await;
                }
            };
            spdy::serve(io, end.clone(), |incoming| {
                port_forward::run(incoming, dial, limit, &end)
            })
            .await;
        }
    }
}
