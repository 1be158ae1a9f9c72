//! Reading through the filter, as a server does.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::frames::PREFACE;

/// HEADERS on stream 1, whose block is only `:authority`, with the static index of its name.
fn headers(authority: &[u8]) -> Vec<u8> {
    let len = u8::try_from(authority.len()).unwrap();
    [&[0, 0, len + 2, 1, 4, 0, 0, 0, 1, 0x41, len], authority].concat()
}

async fn read_all(mut filter: AuthorityFilter<impl AsyncRead + Unpin>, at_once: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut some = vec![0; at_once];
    loop {
        match filter.read(&mut some).await.unwrap() {
            0 => return all,
            n => all.extend_from_slice(&some[..n]),
        }
    }
}

#[tokio::test]
async fn output_is_independent_of_read_sizes() {
    let sent = [
        PREFACE,
        &headers(b"%2Frun%2Fa.sock"),
        &[0, 0, 3, 0, 1, 0, 0, 0, 1, 7, 8, 9],
    ]
    .concat();
    let expected = [
        PREFACE,
        &headers(b"-2Frun-2Fa.sock"),
        &[0, 0, 3, 0, 1, 0, 0, 0, 1, 7, 8, 9],
    ]
    .concat();
    for at_once in 1..=sent.len() {
        assert_eq!(
            read_all(AuthorityFilter::new(&*sent), at_once).await,
            expected,
            "{at_once}"
        );
    }
}

#[tokio::test]
async fn only_header_blocks_are_buffered() {
    let (mut client, server) = tokio::io::duplex(1024);
    let mut filter = AuthorityFilter::new(server);
    let mut read = [0; 64];
    // The first half of the preface, its second half, settings, and the beginning of DATA.
    for part in [
        &PREFACE[..10],
        &PREFACE[10..],
        &[0, 0, 0, 4, 0, 0, 0, 0, 0],
        &[0, 1, 0, 0, 0, 0, 0, 0, 1, 5],
    ] {
        client.write_all(part).await.unwrap();
        let n = filter.read(&mut read).await.unwrap();
        assert_eq!(read[..n], *part);
    }
}

#[tokio::test]
async fn unfinished_header_block_is_passed_on_at_eof() {
    let sent = [PREFACE, &headers(b"a/b")].concat();
    let sent = &sent[..sent.len() - 1];
    assert_eq!(read_all(AuthorityFilter::new(sent), 100).await, sent);
}

#[tokio::test]
async fn filter_is_bypassed_after_a_valid_first_request() {
    // The second request would have to be rewritten: this is the price of passing everything on.
    let sent = [PREFACE, &headers(b"localhost"), &headers(b"a/b")].concat();
    let mut filter = AuthorityFilter::new(&*sent);
    let mut read = vec![0; PREFACE.len()];
    filter.read_exact(&mut read).await.unwrap();
    assert!(filter.is_watching());
    let mut rest = Vec::new();
    filter.read_to_end(&mut rest).await.unwrap();
    assert!(!filter.is_watching());
    assert_eq!([read, rest].concat(), sent);
}

#[tokio::test]
async fn filter_stays_active_after_a_path_authority() {
    let sent = [
        PREFACE,
        &headers(b"a/b"),
        &headers(b"localhost"),
        &headers(b"c/d"),
    ]
    .concat();
    let expected = [
        PREFACE,
        &headers(b"a-b"),
        &headers(b"localhost"),
        &headers(b"c-d"),
    ]
    .concat();
    assert_eq!(read_all(AuthorityFilter::new(&*sent), 7).await, expected);
}

#[tokio::test]
async fn non_http2_bytes_pass_unchanged() {
    for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/1.1", b"", b"P"] {
        assert_eq!(read_all(AuthorityFilter::new(sent), 5).await, sent);
    }
}

#[test]
fn endless_header_block_is_buffered_up_to_a_limit() {
    let head = |kind, len: usize| {
        let [.., a, b, c] = len.to_be_bytes();
        vec![a, b, c, kind, 0, 0, 0, 0, 1]
    };
    let mut rewriter = Rewriter::default();
    let mut out = Vec::new();
    rewriter.push(PREFACE, &mut out);
    rewriter.push(&head(1, 0), &mut out);
    let mut sent = out.len() + 9;
    while !rewriter.is_pass_through() {
        assert!(
            sent - out.len() <= 64 << 10 && sent < 1 << 20,
            "{sent} bytes, and nothing passes"
        );
        let frame = [head(9, 16 << 10), vec![0; 16 << 10]].concat();
        rewriter.push(&frame, &mut out);
        sent += frame.len();
    }
    assert_eq!(out.len(), sent);

    // Small pieces give the same result.
    let mut rewriter = Rewriter::default();
    let mut out = Vec::new();
    rewriter.push(PREFACE, &mut out);
    rewriter.push(&head(1, 0), &mut out);
    for _ in 0..100 {
        rewriter.push(&head(9, 0), &mut out);
    }
    assert!(rewriter.is_pass_through());
    assert_eq!(out.len(), PREFACE.len() + 101 * 9);
}

#[tokio::test]
async fn peer_credentials_and_guard_are_kept_with_the_connection() {
    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let guard = std::sync::Arc::new(());
    let filter = AuthorityFilter::with_guard(ours, std::sync::Arc::clone(&guard));
    let peer = filter.connect_info().peer_cred.unwrap();
    assert_eq!(peer.pid(), Some(std::process::id().cast_signed()));
    assert_eq!(std::sync::Arc::strong_count(&guard), 2);
    drop(filter);
    assert_eq!(std::sync::Arc::strong_count(&guard), 1);
}
