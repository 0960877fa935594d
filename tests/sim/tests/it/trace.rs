//! A trace contains all work requests and their ends, and is rendered as text and as valid JSON.

use lite::{NodeId, Permissions, TraceEvent};
use sim::{Cluster, NodeTrace, Options, chrome, text};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn all_that_is_posted_ends_in_the_trace() {
    let mut c = Cluster::new(Options { nodes: 2, ..Options::default() });
    let lites = [c.lite(1), c.lite(2)];
    let a = lites[0].clone();
    c.world.run(Duration::from_secs(10), async move {
        let rights = Permissions::READ | Permissions::WRITE;
        let lmr = a.alloc(NodeId(2), 1 << 20, rights).await.unwrap();
        assert!(a.traced().is_empty(), "it is off at first");
        a.set_tracing(true);
        lmr.write(0, &[1; 300_000]).await.unwrap();
        lmr.read(0, &mut [0; 64]).await.unwrap();
        a.set_tracing(false);
        lmr.read(0, &mut [0; 64]).await.unwrap();
    });
    let events = lites[0].traced();
    let (mut open, mut bytes) = (BTreeSet::new(), 0);
    for stamped in &events {
        match stamped.event {
            TraceEvent::Posted { id, bytes: n, peer, .. } => {
                assert_eq!(peer, NodeId(2));
                assert!(open.insert(id));
                bytes += n;
            }
            TraceEvent::Ended { id, ok } => assert!(ok && open.remove(&id)),
            _ => {}
        }
    }
    assert!(open.is_empty());
    assert_eq!(bytes, 300_064);
    assert!(events.is_sorted_by_key(|e| e.at));
    let traces = lites.map(|lite| NodeTrace { node: lite.node_id(), events: lite.traced() });
    assert_eq!(text(&traces).lines().count(), 300_000usize.div_ceil(65536) + 1);
    let json: serde_json::Value = serde_json::from_str(&chrome(&traces)).unwrap();
    let spans: Vec<_> = json.as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(spans.len(), 300_000usize.div_ceil(65536) + 1);
    assert!(spans.iter().all(|s| s["dur"].as_f64().unwrap() > 0.0 && s["args"]["ok"] == true));
}
