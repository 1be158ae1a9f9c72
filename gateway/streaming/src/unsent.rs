//! Number of bytes written to a TCP connection that its peer has not acknowledged. The kernel's `SIOCOUTQ` would say it, but
//! has no safe wrapper; the table of the connections in `/proc` says the same.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;

/// The tables of the network namespace in which the process began, where the server's sockets are.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// The number of bytes that the peer has not acknowledged; `None` if this is no TCP connection. Reads the table of all
/// connections of the host: blocks, and is for rare use.
///
/// # Errors
///
/// A table cannot be read.
pub(crate) fn unsent(socket: &File) -> io::Result<Option<u64>> {
    let inode = socket.metadata()?.ino();
    for table in TABLES {
        let table = match File::open(table) {
            Ok(table) => BufReader::new(table),
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in table.lines() {
            if let Some(unsent) = queued(&line?, inode) {
                return Ok(Some(unsent));
            }
        }
    }
    Ok(None)
}

/// The length of the send queue in a line of the table; `None` if the line is of another socket.
fn queued(line: &str, inode: u64) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let queues = fields.nth(4)?;
    // Between them: the timer, the retransmissions, the user, and the probes.
    if fields.nth(4)?.parse::<u64>() != Ok(inode) {
        return None;
    }
    u64::from_str_radix(queues.split_once(':')?.0, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn send_queue_of_a_line() {
        const LINE: &str = "   1: 0100007F:1F90 0100007F:C350 01 0028A3F0:00000010 01:00000014 00000000     0        0 70211 2 0000000000000000 20 4 30 10 -1";
        const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        const SIX: &str = "   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:C350 04 00000001:00000000 01:00000014 00000000     0        0 9 2 0000000000000000";
        for (line, inode, expected) in [
            (LINE, 70211, Some(0x0028_a3f0)),
            (LINE, 7021, None),
            (SIX, 9, Some(1)),
            (HEAD, 70211, None),
            ("", 70211, None),
            ("1: a b 01 zz:0 t r u p 5", 5, None),
        ] {
            assert_eq!(queued(line, inode), expected, "{line} {inode}");
        }
    }

    #[test]
    fn send_queue_grows_with_what_the_peer_does_not_read() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                // The host has no IPv6.
                continue;
            };
            let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut socket, _) = listener.accept().unwrap();
            let file = |socket: &TcpStream| File::from(OwnedFd::from(socket.try_clone().unwrap()));
            assert_eq!(unsent(&file(&socket)).unwrap(), Some(0), "{address}");
            socket.set_nonblocking(true).unwrap();
            while socket.write(&[0; 1 << 16]).is_ok() {}
            let queued = unsent(&file(&socket)).unwrap();
            assert!(
                queued.is_some_and(|queued| queued > 0),
                "{address}: {queued:?}"
            );
        }
    }

    #[test]
    fn socket_that_is_no_tcp_connection_has_no_send_queue() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert_eq!(unsent(&File::from(OwnedFd::from(socket))).unwrap(), None);
    }
}
