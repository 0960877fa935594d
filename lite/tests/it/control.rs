//! The control connection: a message that no task takes delays no other message.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions};
use proto::{JobId, ToNode};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A piece of a job's input.
fn piece(number: u64, len: usize) -> ToNode {
    ToNode::JobInput { job: JobId(1), file: 0, offset: number, bytes: vec![0; len], end_of_split: false }
}

/// Sends the manager a request that must be answered on the control connection.
async fn publish(lite: Lite, name: &'static str) -> Result<(), Error> {
    let lmr = lite.alloc(lite.node_id(), 100, Permissions::all()).await?;
    lmr.publish(name).await
}

#[test]
fn messages_that_nobody_takes_hold_nothing_up() {
    let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
    let node = NodeId(1);
    for number in 0..500 {
        c.hub.send(node, &piece(number, 4 << 10));
    }
    assert_eq!(c.world.run(LIMIT, publish(c.lite(1), "behind them")), Ok(()));
    let messages = c.lite(1).control_messages();
    let taken = async move {
        for number in 0..500 {
            let expected = proto::encode(&piece(number, 4 << 10));
            assert_eq!(messages.next().await, Some(expected), "in order, and none is lost");
        }
    };
    c.world.run(LIMIT, taken);
}

#[test]
fn a_manager_that_sends_more_than_a_node_was_ready_to_take_is_left() {
    let mut c = Cluster::new(2, 2, 16 << 20, &Config::default());
    let (node, len) = (NodeId(1), 48 << 10);
    // Twice as much as a node may ever have promised: a job that was cancelled, and the next one.
    let promised = 2 * ToNode::INPUT_WINDOW / len as u64;
    for number in 0..promised {
        c.hub.send(node, &piece(number, len));
    }
    assert_eq!(c.world.run(LIMIT, publish(c.lite(1), "behind them")), Ok(()));
    for number in 0..3 * promised {
        c.hub.send(node, &piece(number, len));
    }
    assert_eq!(c.world.run(LIMIT, publish(c.lite(1), "too much")), Err(Error::LinkDown));
    assert_eq!(c.world.run(LIMIT, publish(c.lite(2), "of no concern")), Ok(()));
}
