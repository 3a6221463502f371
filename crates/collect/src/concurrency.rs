//! Concurrent futures on one task.

use std::pin::Pin;
use std::task::Poll;

/// Drives futures concurrently, at most `limit` at a time, and returns their outputs in order. A future is taken from
/// the iterator when it can start.
pub(crate) async fn join_all<F: Future + Unpin>(
    futures: impl IntoIterator<Item = F>,
    limit: usize,
) -> Vec<F::Output> {
    let mut futures = futures.into_iter().fuse();
    let mut running: Vec<(usize, F)> = Vec::new();
    let mut outputs: Vec<Option<F::Output>> = Vec::new();
    std::future::poll_fn(|context| {
        running.retain_mut(|(index, future)| match Pin::new(future).poll(context) {
            Poll::Ready(output) => {
                outputs[*index] = Some(output);
                false
            }
            Poll::Pending => true,
        });
        while running.len() < limit.max(1)
            && let Some(mut future) = futures.next()
        {
            match Pin::new(&mut future).poll(context) {
                Poll::Ready(output) => outputs.push(Some(output)),
                Poll::Pending => {
                    running.push((outputs.len(), future));
                    outputs.push(None);
                }
            }
        }
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
