//! Episodes that agents lease: offers in the order in which they were made.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// Sends what an agent receives to the request that leases an episode.
pub(crate) type Grant = oneshot::Sender<Value>;

/// Episodes without an agent.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    waiting: Mutex<VecDeque<oneshot::Sender<Grant>>>,
    added: Notify,
}

impl Offers {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<Grant>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an agent leases an episode. Cancel-safe: an offer that is dropped is not leased.
    pub(crate) async fn offer(&self) -> Option<Grant> {
        let (sender, leased) = oneshot::channel();
        self.waiting().push_back(sender);
        self.added.notify_one();
        leased.await.ok()
    }

    /// Leases the oldest episode, after waiting for one. `None` if there is none in time.
    pub(crate) async fn lease(&self, patience: Duration) -> Option<Value> {
        timeout(patience, async {
            loop {
                let offer = self.waiting().pop_front();
                let Some(offer) = offer else {
                    self.added.notified().await;
                    continue;
                };
                let (grant, granted) = oneshot::channel();
                // An episode that was cancelled, or whose session does not open, is passed over.
                if offer.send(grant).is_ok()
                    && let Ok(lease) = granted.await
                {
                    // Others may wait, and there may be more.
                    self.added.notify_one();
                    return lease;
                }
            }
        })
        .await
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn block_on<F: Future>(future: F) -> Option<F::Output> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
        Some(runtime.block_on(future))
    }

    #[test]
    fn the_oldest_episode_that_still_waits_is_leased_first() {
        let order = block_on(async {
            let offers = Arc::new(Offers::default());
            let mut made = Vec::new();
            for number in 0..3 {
                let own = Arc::clone(&offers);
                made.push(tokio::spawn(async move {
                    if let Some(grant) = own.offer().await {
                        let _ = grant.send(json!(number));
                    }
                }));
                tokio::task::yield_now().await;
            }
            made.remove(1).abort();
            tokio::task::yield_now().await;
            let patience = Duration::from_mins(1);
            let leases = [offers.lease(patience).await, offers.lease(patience).await];
            let none = offers.lease(Duration::ZERO).await;
            (leases, none)
        });
        assert_eq!(order, Some(([Some(json!(0)), Some(json!(2))], None)));
    }

    #[test]
    fn requests_that_wait_are_served_when_episodes_come() {
        let leases = block_on(async {
            let offers = Arc::new(Offers::default());
            let wait = |_| {
                let own = Arc::clone(&offers);
                tokio::spawn(async move { own.lease(Duration::from_mins(1)).await })
            };
            let waiting: Vec<_> = (0..2).map(wait).collect();
            tokio::task::yield_now().await;
            let offer = |number: u32| {
                let own = Arc::clone(&offers);
                tokio::spawn(async move { own.offer().await.map(|grant| grant.send(json!(number)).is_ok()) })
            };
            let made: Vec<_> = (0..2).map(offer).collect();
            let mut leases = Vec::new();
            for request in waiting {
                leases.push(request.await.ok().flatten().and_then(|lease| lease.as_u64()));
            }
            for own in made {
                assert!(matches!(own.await, Ok(Some(true))));
            }
            leases.sort();
            leases
        });
        assert_eq!(leases, Some(vec![Some(0), Some(1)]));
    }
}
