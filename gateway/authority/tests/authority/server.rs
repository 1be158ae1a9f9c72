//! A real `h2` server.

use switchyard_authority::AuthorityFilter;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};

/// The authorities of the requests that `h2` serves behind the filter, when a client sends these bytes and
/// disconnects.
pub(crate) async fn served(sent: &[u8]) -> Vec<String> {
    serve(sent, AuthorityFilter::new).await
}

/// The same, without the filter.
pub(crate) async fn served_without_filter(sent: &[u8]) -> Vec<String> {
    serve(sent, |stream| stream).await
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    sent: &[u8],
    accept: impl FnOnce(DuplexStream) -> S,
) -> Vec<String> {
    let (client, server) = duplex(4 << 20);
    let serve = async {
        let builder = h2::server::Builder::new();
        let mut connection = builder
            .handshake::<_, bytes::Bytes>(accept(server))
            .await
            .unwrap();
        let mut authorities = Vec::new();
        while let Some(Ok((request, _respond))) = connection.accept().await {
            authorities.push(request.uri().authority().unwrap().to_string());
        }
        authorities
    };
    tokio::join!(serve, send(client, sent)).0
}

/// Sends the bytes, and disconnects when the server has read all of them, which it shows by answering a final
/// PING, or when the server disconnects.
async fn send(mut client: DuplexStream, sent: &[u8]) {
    const LAST: &[u8] = b"the last";
    client
        .write_all(&[sent, &[0, 0, 8, 6, 0, 0, 0, 0, 0], LAST].concat())
        .await
        .unwrap();
    let mut answer = [0; 9];
    while client.read_exact(&mut answer).await.is_ok() {
        let len = u32::from_be_bytes([0, answer[0], answer[1], answer[2]]);
        let mut payload = vec![0; usize::try_from(len).unwrap()];
        client.read_exact(&mut payload).await.unwrap();
        if answer[3] == 6 && payload == LAST {
            return;
        }
    }
}
