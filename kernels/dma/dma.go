// Package dma copies strided memory of GPUs with their copy engines, in few large calls: a
// transfer.Copier, and the mapping of GPU memory of other processes. It converts nothing,
// launches no kernel of its own, and does nothing for memory of the host.
package dma
