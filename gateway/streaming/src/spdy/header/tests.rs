//! Tests of header blocks: the output of other compressors is decoded, and malformed blocks are refused.

use flate2::{Compress, Compression, FlushCompress};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::{Deflater, HeaderError, Inflater, MAX_BLOCK, parse};

/// Go's zlib encoding of `streamtype: error`, the first block of every Kubernetes client.
const FROM_GO: &str = "78f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff";

fn plain(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut plain = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        plain.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
        plain.extend_from_slice(text.as_bytes());
    }
    plain
}

/// A stored (uncompressed) block with `prefix` before it.
fn stored(prefix: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut deflate = Compress::new(Compression::none(), false);
    let mut out = Vec::with_capacity(plain.len() + 100);
    deflate
        .compress_vec(plain, &mut out, FlushCompress::Sync)
        .unwrap();
    [prefix, &out].concat()
}

const PREFIX: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];

#[test]
fn header_blocks_share_one_compression_stream() {
    let mut deflater = Deflater::new();
    let mut inflater = Inflater::new();
    for id in ["0", "1", "31415"] {
        let headers = [("streamtype", "data"), ("port", "8080"), ("requestid", id)];
        let read = inflater.read(&deflater.write(&headers)).unwrap();
        assert_eq!(
            read,
            headers.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }
}

#[test]
fn dictionary_words_are_compressed() {
    let block = Deflater::new().write(&[("content-type", "application/xhtml+xml")]);
    assert!(block.len() < 30, "{} bytes", block.len());
    let read = Inflater::new().read(&block).unwrap();
    assert_eq!(
        read,
        [(
            "content-type".to_owned(),
            "application/xhtml+xml".to_owned()
        )]
    );
}

#[test]
fn block_of_gos_compressor_decodes() {
    let block = hex(FROM_GO);
    assert_eq!(
        Inflater::new().read(&block).unwrap(),
        [("streamtype".to_owned(), "error".to_owned())]
    );
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn block_without_the_dictionary_is_rejected() {
    for prefix in [
        &[][..],
        &[0x78, 0x9c],
        &[0x78, 0xbb, 1, 2, 3, 4],
        &[0x79, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2],
    ] {
        let block = stored(prefix, &plain(&[("a", "b")]));
        assert_eq!(
            Inflater::new().read(&block),
            Err(HeaderError::Dictionary),
            "{prefix:?}"
        );
    }
}

#[test]
fn decompression_bomb_is_rejected() {
    let mut deflate = Compress::new(Compression::best(), false);
    let mut out = Vec::with_capacity(1 << 20);
    deflate
        .compress_vec(&vec![0; 2 << 20], &mut out, FlushCompress::Sync)
        .unwrap();
    assert!(out.len() < 1 << 16);
    assert_eq!(
        Inflater::new().read(&[&PREFIX[..], &out].concat()),
        Err(HeaderError::TooLong)
    );
    let value = "v".repeat(MAX_BLOCK);
    let block = Deflater::new().write(&[("name", &value)]);
    assert_eq!(Inflater::new().read(&block), Err(HeaderError::TooLong));
}

#[test]
fn finished_zlib_stream_is_rejected() {
    let mut deflate = Compress::new(Compression::fast(), false);
    let mut out = Vec::with_capacity(1000);
    deflate
        .compress_vec(&plain(&[("a", "b")]), &mut out, FlushCompress::Finish)
        .unwrap();
    assert_eq!(
        Inflater::new().read(&[&PREFIX[..], &out].concat()),
        Err(HeaderError::Compression)
    );
}

#[test]
fn malformed_header_list_is_rejected() {
    #[track_caller]
    fn check(plain: &[u8], expected: HeaderError) {
        assert_eq!(parse(plain), Err(expected));
    }
    check(&[], HeaderError::Truncated);
    check(&[0xff; 4], HeaderError::Truncated);
    check(&plain(&[("a", "b")])[..10], HeaderError::Truncated);
    check(
        &[plain(&[("a", "b")]), vec![0]].concat(),
        HeaderError::Truncated,
    );
    check(&plain(&[("StreamType", "b")]), HeaderError::Name);
    check(&plain(&[("", "b")]), HeaderError::Name);
    check(&plain(&[("a b", "b")]), HeaderError::Name);
    let mut value = plain(&[("a", "b")]);
    *value.last_mut().unwrap() = 0xff;
    check(&value, HeaderError::Value);
}

proptest! {
    #[test]
    fn headers_round_trip(
        blocks in vec(vec(("[a-z0-9:-]{1,20}", ".{0,200}"), 0..5), 1..5)
    ) {
        let mut deflater = Deflater::new();
let mut inflater = Inflater::new();
        for block in blocks {
            let borrowed: Vec<_> = block.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            prop_assert_eq!(inflater.read(&deflater.write(&borrowed)).unwrap(), block);
        }
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_rejected(
        prefixed in any::<bool>(), blocks in vec(vec(any::<u8>(), 0..300), 1..4).prop_map(|blocks| blocks)
    ) {
        let mut inflater = Inflater::new();
        for (at, block) in blocks.iter().enumerate() {
            let block = if prefixed && at == 0 { [&PREFIX[..], block].concat() } else { block.clone() };
            let Ok(headers) = inflater.read(&block) else { break };
            prop_assert!(headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= MAX_BLOCK);
        }
    }
}
