//! The encoding of control messages: golden bytes of those whose layout must not change, and bad bytes.
use proptest::prelude::*;
use proto::*;

#[test]
fn bulk_bytes_are_a_length_and_the_bytes() {
    let message =
        ToNode::JobInput { job: JobId(3), file: 1, offset: 300, bytes: vec![9, 200, 7], end_of_split: true };
    assert_eq!(encode(&message), [8, 3, 1, 0xac, 2, 3, 9, 200, 7, 1]);
    assert_eq!(decode::<ToNode>(&encode(&message)), Ok(message));
    let output = ToManager::JobOutput { job: JobId(3), offset: 5, bytes: vec![255; 200] };
    assert_eq!(encode(&output)[..5], [7, 3, 5, 200, 1]);
    assert_eq!(decode::<ToManager>(&encode(&output)), Ok(output));
}

#[test]
fn the_version_is_read_from_any_version() {
    assert_eq!(Hello::peek_version(&encode(&Hello::Client { version: 700 })), Some((HelloKind::Client, 700)));
    let unfit = Hello::Unfit { version: 700, name: "a".into(), reason: "b".into() };
    assert_eq!(Hello::peek_version(&encode(&unfit)), Some((HelloKind::Node, 700)));
    assert_eq!(Hello::peek_version(&[0, 2, 99, 99, 99]), Some((HelloKind::Node, 2)));
    assert_eq!(Hello::peek_version(&[5, 2]), None);
    assert_eq!(Hello::peek_version(&[]), None);
    assert_eq!(Hello::peek_version(&[0, 0xff, 0xff, 0xff]), None);
}

#[test]
fn messages_of_jobs_are_not_for_lite() {
    let (job, node, incarnation) = (JobId(300), NodeId(2), Incarnation(3));
    let start = JobStart {
        job,
        app: "a".into(),
        args: vec![],
        nodes: vec![],
        inputs: vec![],
        datasets: vec![],
        share: 0,
        keep: false,
    };
    let key = VoucherKey::from_bytes([0; 32]);
    for (message, expected) in [
        (ToNode::Refused { reason: "full".into() }, true),
        (ToNode::HeartbeatAck { seq: 300, time: 5 }, true),
        (ToNode::Left { node, incarnation, reason: "left".into() }, true),
        (ToNode::Relayed { from: node, incarnation, body: vec![8] }, true),
        (ToNode::Name { request: 7, result: Err(NameError::Taken) }, true),
        (ToNode::JobStart(start.clone()), false),
        (ToNode::JobStartWith { start: Box::new(start), qos: JobQos::default() }, false),
        (ToNode::JobInput { job, file: 0, offset: 0, bytes: vec![], end_of_split: true }, false),
        (ToNode::JobInputEnd { job }, false),
        (ToNode::JobOutputAck { job, bytes: 9 }, false),
        (ToNode::JobCancel { job, reason: "late".into() }, false),
        (ToNode::Shutdown, false),
        (ToNode::Power(PowerAction::Off), false),
        (ToNode::Image(BootImage { len: 1, sha256: [0; 32] }), false),
        (ToNode::ImagePiece { bytes: vec![1] }, false),
        (ToNode::ImageDrop, false),
        (ToNode::Settled { node, incarnation }, true),
        (ToNode::DropDataset { job }, false),
        (ToNode::Resumed(Resumed { epoch: 1, time: 2, unsettled: vec![] }), true),
        (ToNode::AskJobs, false),
        (ToNode::AskImage, false),
        (ToNode::Check { request: 1 }, false),
        (ToNode::JobOutputFrom { job, offset: 7 }, false),
        (ToNode::JobForget { job }, false),
        (ToNode::MemoryFree { request: 1, nodes: vec![] }, true),
        (ToNode::Voucher { request: 1, to: node, stamp: 9, key, queue_pair: None }, true),
    ] {
        assert_eq!(ToNode::is_for_lite(&encode(&message)), expected, "{message:?}");
        let of_membership = matches!(message, ToNode::Refused { .. } | ToNode::Resumed(_));
        assert_eq!(ToNode::is_of_membership(&encode(&message)), of_membership, "{message:?}");
    }
    assert!(ToNode::is_for_lite(&[]), "LITE reports malformed messages");
}

#[test]
fn trailing_bytes_are_malformed() {
    let mut bytes = encode(&ToManager::Leave);
    assert_eq!(decode::<ToManager>(&bytes), Ok(ToManager::Leave));
    bytes.push(0);
    assert_eq!(decode::<ToManager>(&bytes), Err(Malformed));
}

proptest! {
    #[test]
    fn no_bytes_panic_the_decoders(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Hello>(&bytes);
        let _ = decode::<ToManager>(&bytes);
        let _ = decode::<ToNode>(&bytes);
        let _ = decode::<FromClient>(&bytes);
        let _ = decode::<ToClient>(&bytes);
        let _ = Hello::peek_version(&bytes);
    }
}
