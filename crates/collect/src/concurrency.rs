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

/// Drives futures concurrently and returns their outputs in order, or the first error: the others are then dropped.
pub(crate) async fn try_join_all<T, E, F: Future<Output = Result<T, E>> + Unpin>(
    futures: impl IntoIterator<Item = F>,
) -> Result<Vec<T>, E> {
    let mut futures: Vec<F> = futures.into_iter().collect();
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_some() {
                continue;
            }
            match Pin::new(future).poll(context) {
                Poll::Ready(Ok(value)) => *output = Some(value),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(outputs.into_iter().flatten().collect())
}
