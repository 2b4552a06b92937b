# ruff: noqa: E402, E501, F821   (a notebook: imports where they are needed, prose in long lines, names on the ranks)

# %% [markdown] lang="en"
# # Two ranks, one layer
#
# Here two ranks share every layer of the grammar tutor. You will predict what they send, run them, and count what they did send. Then you will measure whether two are faster than one, and from what size.
#
# The theory is in the chapter [Tensor parallelism](../../book/en/tensor.md). The lab takes about half a minute to run and an hour to do. Before each cell that runs, write down your prediction.

# %% [markdown] lang="es"
# # Dos ranks, una capa
#
# Aquí dos ranks se reparten cada capa del tutor de gramática. Vas a predecir qué envían, ejecutarlos y contar lo que enviaron de verdad. Después medirás si dos son más rápidos que uno, y desde qué tamaño.
#
# La teoría está en el capítulo [Paralelismo tensorial](../../book/es/tensor.md). El laboratorio tarda medio minuto en ejecutarse, y a ti te llevará una hora. Antes de cada celda que ejecuta algo, anota tu predicción.

# %% [markdown] lang="pt"
# # Dois ranks, uma camada
#
# Aqui dois ranks dividem cada camada do tutor de gramática. Você vai prever o que eles enviam, executá-los e contar o que de fato enviaram. Depois vai medir se dois são mais rápidos do que um, e a partir de que tamanho.
#
# A teoria está no capítulo [Paralelismo de tensores](../../book/pt/tensor.md). O laboratório leva meio minuto para executar e uma hora para fazer. Antes de cada célula que executa algo, anote a sua previsão.

# %%
import torch
import torch.distributed as dist

from paralelo.draw import curves
from paralelo.predict import collectives
from paralelo.predict import tensor as predict
from paralelo.run import tensor, tutor
from paralelo.run.collectives import Ledger, copy_to, reduce_from, unchecked
from paralelo.run.lab import cases, check, gap, knob, pick, table
from paralelo.run.measure import alone, cores, seconds
from paralelo.run.ranks import Ranks, device

# %load_ext paralelo.run.ranks
N = 2
one, two = Ranks(1), Ranks(N)
model = tutor.make(seed=0).double()
print(two)
print(model)

# %% [markdown] lang="en"
# The variable `two` is a pair of processes that stay alive. On this computer each has one CPU thread and the two talk over gloo; where there are two GPUs, each has one and they talk over NCCL. The code does not change.
#
# The tutor has 589 rows of vocabulary, $D = 64$ features, 4 query heads and 2 key/value (KV) heads. Its 111,744 parameters take 0.4 MB. Splitting it is never worth it, and that is what makes it a good first patient.
#
# ## The embedding
#
# Each rank holds half of the rows. For every token it looks up the row if it has it and gives zeros if not, and an all-reduce adds both answers. **Predict:** 589 is odd. How many rows does each rank hold? How many bytes does each send for 8 questions of 8 tokens in float64?

# %% [markdown] lang="es"
# La variable `two` es un par de procesos que siguen vivos. En esta computadora cada uno tiene un hilo de CPU y los dos se comunican por gloo; donde hay dos GPU, cada uno tiene una y se comunican por NCCL. El código no cambia.
#
# El tutor tiene 589 filas de vocabulario, $D = 64$ características, 4 cabezas de consulta y 2 de clave y valor (KV). Sus 111 744 parámetros ocupan 0.4 MB. Dividirlo nunca vale la pena, y por eso es un buen primer caso: verás la idea y también lo que cuesta.
#
# ## El embedding
#
# Cada rank guarda la mitad de las filas. Para cada token, busca la fila si la tiene y da ceros si no, y un all-reduce suma las dos respuestas. **Predice:** 589 es impar. ¿Cuántas filas guarda cada rank? ¿Cuántos bytes envía cada uno para 8 preguntas de 8 tokens en float64?

# %% [markdown] lang="pt"
# A variável `two` é um par de processos que continuam vivos. Neste computador cada um tem uma thread de CPU e os dois conversam por gloo; onde há duas GPUs, cada um tem uma e eles conversam por NCCL. O código não muda.
#
# O tutor tem 589 linhas de vocabulário, $D = 64$ características, 4 cabeças de consulta e 2 de chave e valor (KV). Seus 111.744 parâmetros ocupam 0,4 MB. Dividi-lo nunca vale a pena, e é isso que faz dele uma boa primeira cobaia.
#
# ## O embedding
#
# Cada rank guarda metade das linhas. Para cada token, o rank devolve a linha se ela é dele e zeros se não é; um all-reduce soma as duas respostas. **Preveja:** 589 é ímpar. Quantas linhas cada rank guarda? Quantos bytes cada um envia para 8 perguntas de 8 tokens em float64?

# %%
seen, _ = tutor.split()
tokens, targets = tutor.encode(seen[:8])
B, T, D, V, element = *tokens.shape, model.shape.D, model.shape.V, 8


def shard_embedding(dense, tokens):
    here = device()
    mine = tensor.VocabParallelEmbedding.from_dense(dense.to(here), dist.group.WORLD)
    rows, held = predict.vocab_range(V, N, dist.get_rank()), mine.weight.shape[0]
    with Ledger(tensor=dist.group.WORLD) as ledger:
        found = mine.lookup(tokens.to(here))
        whole = mine(tokens.to(here))
    owned = int((found != 0).any(-1).sum())
    print(f"{rows}: {held} × {mine.weight.shape[1]}, {owned}/{tokens.numel()} tokens")
    return whole, ledger["all_reduce"].ring


answers = two.run(shard_embedding, model.embedding, tokens)

# %%
dense = model.embedding(tokens)
print(*(torch.equal(whole.cpu(), dense) for whole, _ in answers))
table(("embedding", predict.embedding_bytes(B, T, D, N, element), answers[0][1]), unit="B")

# %% [markdown] lang="en"
# Rank 1 holds 295 rows for 294 words: the last row is padding. The result equals the dense one to the last bit, since each sum has one term that is not zero.
#
# What did it buy? Each rank stores 295 rows of 64 numbers instead of 589, and sends 32,768 bytes to look up 64 words. For this vocabulary that is comically wasteful. For a table of 600,000 × 4096 in float32, which takes 9.83 GB, it is not.
#
# ## Partial sums
#
# Now the MLP, by hand. A `%%ranks` cell runs on both ranks, and its variables stay there for the next cell. Each rank takes half of the hidden units: 16 rows of `up` and the same 16 columns of `down`. **Predict:** what does a rank's product hold before anything is sent? And why may the activation be applied to half of the hidden units?

# %% [markdown] lang="es"
# El rank 1 guarda 295 filas para 294 palabras: la última es de relleno. El resultado es igual al denso hasta el último bit, porque cada suma tiene un solo término distinto de cero.
#
# ¿Qué se ganó? Cada rank guarda 295 filas de 64 números en lugar de 589, y envía 32 768 bytes para buscar 64 palabras. Para este vocabulario es un derroche absurdo. Para una tabla de 600 000 × 4096 en float32, que ocupa 9.83 GB, no lo es.
#
# ## Sumas parciales
#
# Ahora el MLP, a mano. Una celda `%%ranks` se ejecuta en los dos ranks, y sus variables se quedan allí para la celda siguiente. Cada rank toma la mitad de las unidades ocultas: 16 filas de `up` y las mismas 16 columnas de `down`. **Predice:** ¿qué contiene el producto de un rank antes de que se envíe nada? ¿Y por qué se puede aplicar la activación a la mitad de las unidades ocultas?

# %% [markdown] lang="pt"
# O rank 1 guarda 295 linhas para 294 palavras: a última é de preenchimento. O resultado é igual ao denso até o último bit, porque cada soma tem um único termo diferente de zero.
#
# O que se ganhou? Cada rank guarda 295 linhas de 64 números em vez de 589, e envia 32 768 bytes para buscar 64 palavras. Para este vocabulário é um desperdício cômico. Para uma tabela de 600 000 × 4096 em float32, que ocupa 9,83 GB, não é.
#
# ## Somas parciais
#
# Agora o MLP, à mão. Uma célula `%%ranks` é executada nos dois ranks, e as suas variáveis ficam lá para a célula seguinte. Cada rank fica com metade das unidades ocultas: 16 linhas de `up` e as mesmas 16 colunas de `down`. **Preveja:** o que contém o produto de um rank antes que algo seja enviado? E por que a ativação pode ser aplicada a metade das unidades ocultas?

# %%
# %%ranks
from torch.nn.functional import gelu

torch.manual_seed(0)                                             # both ranks draw the same whole matrices
x, up, down = (torch.randn(*s, dtype=torch.float64).to(device) for s in ((2, 3), (32, 3), (3, 32)))
mine = slice(16 * rank, 16 * rank + 16)
part = gelu(x @ up[mine].T) @ down[:, mine].T
print(part.round(decimals=2).tolist())

# %%
# %%ranks
dist.all_reduce(part, group=group)
whole = gelu(x @ up.T) @ down.T
print(part.round(decimals=2).tolist())
torch.allclose(part, whole, rtol=1e-9)

# %% [markdown] lang="en"
# Neither part looks like the result, and their sum is the result. Because the activation acts on each hidden unit alone, no rank needs to know the other's units.
#
# ## Forward and backward
#
# The library's `ParallelMLP` does the same and knows about gradients. Its `from_dense` cuts a dense layer, so both start from the same numbers. **Predict:** how many all-reduces does the forward make, and how many the backward? How large is each?

# %% [markdown] lang="es"
# Ninguna de las partes se parece al resultado, pero su suma es exactamente eso. Como la activación actúa sobre cada unidad oculta por separado, ningún rank necesita conocer las unidades del otro.
#
# ## Forward y backward
#
# La clase `ParallelMLP` de la biblioteca hace lo mismo y además lleva los gradientes. El método `from_dense` corta una capa densa, así que las dos parten de los mismos números. **Predice:** ¿cuántos all-reduce hace el forward y cuántos el backward? ¿De qué tamaño es cada uno?

# %% [markdown] lang="pt"
# Nenhuma das partes se parece com o resultado, e a soma delas é o resultado. Como a ativação age sobre cada unidade oculta em separado, nenhum rank precisa conhecer as unidades do outro.
#
# ## Forward e backward
#
# A classe `ParallelMLP` da biblioteca faz o mesmo e sabe de gradientes. O método `from_dense` corta uma camada densa, então as duas partem dos mesmos números. **Preveja:** quantos all-reduce o forward faz, e quantos o backward? De que tamanho é cada um?

# %%
def split_layer(kind, dense, x, dy):
    group = dist.group.WORLD
    mine = kind.from_dense(dense.to(device()), group)
    x = x.to(device()).requires_grad_()
    with Ledger(tensor=group) as forward:
        y = mine(x)
    with Ledger(tensor=group) as backward:
        y.backward(dy.to(device()))
    sent = [(e.calls, e.payload) for e in (forward["all_reduce"], backward["all_reduce"])]
    return {"y": y.detach(), "dx": x.grad, "weights": {k: p.grad for k, p in mine.named_parameters()}, "sent": sent}


generator = torch.Generator().manual_seed(1)
x, dy = (torch.randn(B, T, D, dtype=torch.float64, generator=generator) for _ in range(2))
mlp = model.blocks[0].mlp
split = two.run(split_layer, tensor.ParallelMLP, mlp, x, dy)
print(split[0]["sent"], "·", predict.mlp_bytes(B, T, D, element))

# %%
leaf = x.clone().requires_grad_()
y = mlp(leaf)
y.backward(dy)
joined = torch.cat([part["weights"]["up.weight"].cpu() for part in split])
print(*(gap(part["y"], y.detach()) < 1e-12 and gap(part["dx"], leaf.grad) < 1e-12 for part in split))
print(*(tuple(part["weights"]["up.weight"].shape) for part in split), "→", tuple(joined.shape))
print(gap(joined, mlp.up.weight.grad) < 1e-12)

# %% [markdown] lang="en"
# One all-reduce each way, of $B \cdot T \cdot D$ elements. The gradients of the weights need no message: each rank makes those of its own half, and put together they are the dense ones.
#
# ## Attention, and a trap
#
# Attention is cut between heads. With grouped queries there are fewer KV heads than query heads, and sooner or later more ranks than KV heads. Move the slider: the model has 24 query heads and 4 KV heads, like our reference giant. **Predict** for each degree what a rank holds, and what happens at 3.

# %% [markdown] lang="es"
# Un all-reduce en cada sentido, de $B \cdot T \cdot D$ elementos. Los gradientes de los pesos no necesitan mensajes: cada rank calcula los de su mitad, y juntos son los densos.
#
# ## La atención, y una trampa
#
# La atención se corta entre cabezas. Con consultas agrupadas hay menos cabezas KV que de consulta y, tarde o temprano, más ranks que cabezas KV. Mueve el control deslizante: el modelo tiene 24 cabezas de consulta y 4 KV, como nuestro gigante de referencia. **Predice** para cada grado qué guarda un rank, y qué pasa con 3.

# %% [markdown] lang="pt"
# Um all-reduce em cada sentido, de $B \cdot T \cdot D$ elementos. Os gradientes dos pesos não precisam de mensagens: cada rank faz os da sua metade, e juntos eles são os densos.
#
# ## A atenção, e uma armadilha
#
# A atenção é cortada entre cabeças. Com consultas agrupadas há menos cabeças KV do que de consulta e, mais cedo ou mais tarde, mais ranks do que cabeças KV. Mova o controle deslizante: o modelo tem 24 cabeças de consulta e 4 KV, como o nosso gigante de referência. **Preveja** para cada grau o que um rank guarda, e o que acontece com 3.

# %% tags=["nbval-ignore-output"]
def held(N, H=24, K=4, D=5120, d=256):
    if N not in {n for degrees in predict.head_degrees(H, K) for n in degrees}:
        return f"N = {N}   ✗   {H} % {N} = {H % N}, {K} % {N} = {K % N}, {N} % {K} = {N % K}"
    lines = [f"N = {N}   k, v: {predict.kv_copies(K, N)} ×   {predict.wasted_kv_parameters(D, K, d, N):,} parameters"]
    for r, heads in enumerate(predict.kv_head_map(H, K, N)):
        mine = predict.query_heads(H, N, r)
        lines.append(f"rank {r}   q {mine[0]:2}–{mine[-1]:2}   k, v {', '.join(map(str, heads))}")
    return "\n".join(lines)


knob(held, "N", [1, 2, 3, 4, 8, 12, 24], start=8)

# %% [markdown] lang="en"
# At 8 the query heads divide and the KV heads do not, so each is stored on two ranks. Nothing fails and nothing warns. You pay in storage, in work and in one more thing.
#
# Let us scale it down to two ranks: 4 query heads and **one** KV head, on both ranks. Each copy serves its own query heads, so each sees only part of the gradient. The library adds the two parts. The run below also turns that sum off, as if someone had forgotten it, and takes one step of SGD. **Predict:** what can you see in the output? And in the weights?

# %% [markdown] lang="es"
# Con 8 se dividen las cabezas de consulta y no las KV, así que cada una de estas se guarda en dos ranks. Nada falla y nada avisa. Lo pagas en memoria, en cómputo y en una cosa más.
#
# Reduzcámoslo a dos ranks: 4 cabezas de consulta y **una** KV, en los dos ranks. Cada copia sirve a sus propias cabezas de consulta, así que cada una ve solo una parte del gradiente. La biblioteca suma las dos partes. La celda siguiente da un paso de SGD con esa suma y otro sin ella, como si alguien la hubiera olvidado. **Predice:** ¿qué se nota en la salida? ¿Y en los pesos?

# %% [markdown] lang="pt"
# Com 8 as cabeças de consulta se dividem e as KV não, então cada uma destas fica guardada em dois ranks. Nada falha e nada avisa. Você paga em memória, em computação e em mais uma coisa.
#
# Vamos reduzir para dois ranks: 4 cabeças de consulta e **uma** KV, nos dois ranks. Cada cópia serve às suas próprias cabeças de consulta, então cada uma vê só uma parte do gradiente. A biblioteca soma as duas partes. A execução abaixo também desliga isso, como se alguém tivesse esquecido, e dá um passo de SGD. **Preveja:** o que se nota na saída? E nos pesos?

# %%
def step(dense, x, dy, forget):
    mine = tensor.ParallelAttention.from_dense(dense.to(device()), dist.group.WORLD)
    if forget:
        mine.k.copies = mine.v.copies = 1
    y = mine(x.to(device()))
    y.backward(dy.to(device()))
    torch.optim.SGD(mine.parameters(), lr=0.1).step()
    return y.detach().cpu(), mine.k.weight.detach().cpu()


for forget in (False, True):
    torch.manual_seed(2)
    attention = tensor.Attention(D, H=4, K=1).double()
    (y0, k0), (y1, k1) = two.run(step, attention, x, dy, forget)
    print("✗" if forget else "✓", f"y₀ = y₁: {gap(y0, y1) < 1e-12}", f"k₀ = k₁: {gap(k0, k1) < 1e-12}", sep="   ")

# %% [markdown] lang="en"
# In this step the outputs agree on both ranks, so the loss looks healthy. But with the sum forgotten the two copies of one head have become two heads. From now on the model that trains is not the one you wrote, and a checkpoint that keeps one copy keeps the wrong one.
#
# ## The whole tutor
#
# Embedding, blocks and loss, split over two ranks, one step forward and backward. **Predict** each line of the table: what a rank sends in the embedding, in two layers of four all-reduces, in the loss with its three small reductions for each token, and in the backward of the output layer, which reads the same split table.

# %% [markdown] lang="es"
# En este paso las salidas coinciden en los dos ranks, así que la pérdida parece sana. Pero sin esa suma las dos copias de una cabeza ya son dos cabezas distintas. De ahí en adelante el modelo que se entrena no es el que escribiste, y un checkpoint que conserva una sola copia conserva la equivocada.
#
# ## El tutor entero
#
# Embedding, bloques y pérdida, divididos entre dos ranks, un paso con forward y backward. **Predice** cada fila de la tabla: lo que un rank envía en el embedding, en dos capas de cuatro all-reduce, en la pérdida con sus tres reducciones pequeñas por token, y en el backward de la capa de salida, que lee la misma tabla dividida.

# %% [markdown] lang="pt"
# Neste passo as saídas coincidem nos dois ranks, então a perda parece saudável. Mas sem essa soma as duas cópias de uma cabeça viraram duas cabeças. De agora em diante o modelo que treina não é o que você escreveu, e um checkpoint que guarda uma cópia guarda a errada.
#
# ## O tutor inteiro
#
# Embedding, blocos e perda, divididos entre dois ranks, um passo com forward e backward. **Preveja** cada linha da tabela: o que um rank envia no embedding, em duas camadas de quatro all-reduce, na perda com as suas três reduções pequenas por token, e no backward da camada de saída, que lê a mesma tabela dividida.

# %%
def whole_step(dense, tokens, targets):
    group = dist.group.WORLD
    mine = tutor.ParallelTutor.from_dense(dense.to(device()), group)
    tokens, targets = tokens.to(device()), targets.to(device())
    counted = {}

    def count(name, call):
        with Ledger(tensor=group) as ledger:
            out = call()
        counted[name] = ledger.total.ring
        return out

    x = count("embedding", lambda: mine.embedding(tokens))
    for block in mine.blocks:
        x = count(f"block {len(counted)}", lambda x=x, block=block: block(x))
    loss = count("loss", lambda: mine.head.loss(mine.head(x), targets))
    count("backward", loss.backward)
    return loss.item(), counted


losses, counted = zip(*two.run(whole_step, model, tokens, targets), strict=True)
layer, n = predict.layer_bytes(B, T, D, N, element), B * T
print(*(abs(loss - model.loss(tokens, targets).item()) < 1e-12 for loss in losses))
table(
    ("embedding", predict.embedding_bytes(B, T, D, N, element), counted[0]["embedding"]),
    ("block 1", layer // 2, counted[0]["block 1"]),
    ("block 2", layer // 2, counted[0]["block 2"]),
    ("loss", predict.cross_entropy_bytes(n, N, element), counted[0]["loss"]),
    ("backward", layer + collectives.all_reduce_bytes(n * D * element, N), counted[0]["backward"]),
    unit="B",
)

# %% [markdown] lang="en"
# ## Is it faster?
#
# Two ranks do half of the arithmetic each, and pay for two all-reduces. Arithmetic grows with $D^2$, messages with $D$, so beyond some size two ranks are worth it. **Predict** where, before you run.
#
# An MLP of $F = 4D$ on 256 tokens, forward and backward, is timed on one rank and on two. One CPU rank runs one thread, and so does the single device it is compared with; that is the blue curve $t_1/t_2$. The second curve compares the two ranks with one process that may use all threads, which is what you would do with one computer. The dotted line is a prediction: half of $t_1$, plus two all-reduces of $B \cdot T \cdot D$ elements measured alone. Every time is the best of nine, because whatever else the computer does only adds to it.

# %% [markdown] lang="es"
# ## ¿Es más rápido?
#
# Cada uno de los dos ranks hace la mitad de las cuentas, y los dos pagan dos all-reduce. Las cuentas crecen con $D^2$ y los mensajes con $D$: hay un tamaño a partir del cual conviene usar dos. **Predice** cuál antes de ejecutar.
#
# Se mide un MLP con $F = 4D$ y 256 tokens, forward y backward, en un rank y en dos. Un rank en CPU usa un solo hilo, igual que el dispositivo único con el que se compara; esa es la curva azul $t_1/t_2$. La segunda curva compara los dos ranks con un proceso que puede usar todos los hilos, que es lo que harías con una sola computadora. La línea de puntos es una predicción: la mitad de $t_1$ más dos all-reduce de $B \cdot T \cdot D$ elementos, medidos aparte. Cada tiempo es el mejor de nueve, porque lo demás que hace la computadora solo puede alargarlo.

# %% [markdown] lang="pt"
# ## É mais rápido?
#
# Cada um dos dois ranks faz metade das contas, e os dois pagam dois all-reduce. As contas crescem com $D^2$ e as mensagens com $D$: há um tamanho a partir do qual dois valem a pena. **Preveja** qual antes de executar.
#
# Mede-se um MLP com $F = 4D$ e 256 tokens, forward e backward, em um rank e em dois. Um rank em CPU usa uma única thread, assim como o dispositivo único com que é comparado; essa é a curva azul $t_1/t_2$. A segunda curva compara os dois ranks com um processo que pode usar todas as threads, que é o que você faria com um só computador. A linha pontilhada é uma previsão: metade de $t_1$ mais dois all-reduce de $B \cdot T \cdot D$ elementos, medidos à parte. Cada tempo é o melhor de nove, porque o que mais o computador faz só pode aumentá-lo.

# %% tags=["timed"]
sizes = pick(cpu=[64, 128, 256, 512, 768], two_gpus=[64, 256, 1024, 4096, 8192])
tokens_timed = pick(cpu=256, two_gpus=4096)


def time_mlp(D, threads=1):
    group, here = dist.group.WORLD, device()
    if here.type == "cpu":
        torch.set_num_threads(threads)
    layer = tensor.ParallelMLP.from_dense(tensor.MLP(D, 4 * D, gated=False, device=here), group)
    x = torch.randn(tokens_timed, D, device=here, requires_grad=True)
    with unchecked():
        whole = min(seconds(lambda: layer(x).sum().backward(), repeats=9, warmup=2, group=group, device=here))
        message = min(seconds(lambda: reduce_from(x.detach(), group), repeats=9, warmup=2, group=group, device=here))
    if here.type == "cpu":
        torch.set_num_threads(1)
    return whole, message


with alone():
    t1 = {D: one.run(time_mlp, D)[0][0] for D in sizes}
    t_all = {D: one.run(time_mlp, D, cores())[0][0] for D in sizes} if one.device == "cpu" else {}
    t2, message = {}, {}
    for D in sizes:
        t2[D], message[D] = two.run(time_mlp, D)[0]
expected = {D: t1[D] / 2 + 2 * message[D] for D in sizes}

# %% tags=["nbval-ignore-output", "timed"]
from IPython.display import SVG

curve = {"t₁/t₂": [(D, t1[D] / t2[D]) for D in sizes]}
if t_all:
    curve["t∀/t₂"] = [(D, t_all[D] / t2[D]) for D in sizes]
SVG(curves.lines(curve, "D", "t₁/t₂", level=1, fit={"p": [(D, t1[D] / expected[D]) for D in sizes]}))

# %% tags=["nbval-ignore-output", "timed"]
table(*((f"t₂, D = {D}", 1000 * expected[D], 1000 * t2[D]) for D in sizes), unit="ms")

# %% tags=["timed"]
assert t2[sizes[0]] > t1[sizes[0]] / 2          # the tutor's size: nowhere near twice as fast

# %% [markdown] lang="en"
# At the tutor's size, $D = 64$, two ranks take longer than one: the step is almost all latency. The curve climbs, and where it crosses 1 two ranks begin to pay. A point above 2 is no miracle: half of the weights may fit in a cache that the whole did not fit in.
#
# The prediction leaves out what each call costs besides its messages, so it is optimistic for small $D$. Where its last points agree with the curve, you can use it for sizes that you cannot run.
#
# ## Exercises
#
# Replace every `...` and run the cell; the check cell below it says `✓`, or what differs and which hint to read. Its value is your score.
#
# ### 1. One layer's payload
#
# How many bytes do the all-reduces of one transformer layer carry in all, forward and backward? The function `payload` returns it for $B$, $T$, $D$ and the bytes of an element, whatever the number of ranks.
#
# <details>
# <summary>Hint 1</summary>
#
# Count the places: two blocks (attention and MLP), each with one all-reduce forward and one backward. The payload is the tensor itself; what a ring sends of it is another question.
#
# </details>

# %% [markdown] lang="es"
# Con el tamaño del tutor, $D = 64$, dos ranks tardan más que uno: el paso es casi pura latencia. La curva sube, y donde cruza el 1 empieza a convenir usar dos ranks. Un punto por encima de 2 no es un milagro: quizá la mitad de los pesos cabe en una caché en la que no cabían todos.
#
# La predicción no cuenta lo que cuesta cada llamada además de sus mensajes, así que es optimista con $D$ pequeño. Si sus últimos puntos coinciden con la curva, puedes usarla para tamaños que no puedes ejecutar.
#
# ## Ejercicios
#
# Reemplaza cada `...` y ejecuta la celda; la celda de comprobación que sigue dice `✓`, o qué difiere y qué pista leer. El valor que devuelve es tu puntaje.
#
# ### 1. El tamaño de los mensajes de una capa
#
# ¿Cuántos bytes llevan en total los all-reduce de una capa del transformer, en el forward y en el backward? La función `payload` los da para $B$, $T$, $D$ y los bytes de un elemento, sea cual sea el número de ranks.
#
# <details>
# <summary>Pista 1</summary>
#
# Cuenta los lugares: dos bloques (atención y MLP), cada uno con un all-reduce en el forward y otro en el backward. Se pide el tamaño del tensor; cuánto envía un anillo para sumarlo es otra pregunta.
#
# </details>

# %% [markdown] lang="pt"
# No tamanho do tutor, $D = 64$, dois ranks demoram mais do que um: o passo é quase pura latência. A curva sobe, e onde cruza o 1 dois ranks começam a valer a pena. Um ponto acima de 2 não é milagre: talvez metade dos pesos caiba em uma cache em que todos não cabiam.
#
# A previsão deixa de fora o que cada chamada custa além das mensagens, então é otimista com $D$ pequeno. Se os últimos pontos coincidem com a curva, você pode usá-la para tamanhos que não pode executar.
#
# ## Exercícios
#
# Substitua cada `...` e execute a célula; a célula de verificação logo abaixo diz `✓`, ou o que difere e qual dica ler. O valor que ela devolve é a sua pontuação.
#
# ### 1. Os dados de uma camada
#
# Quantos bytes têm ao todo os all-reduce de uma camada do transformer, no forward e no backward? A função `payload` devolve esse total a partir de $B$, $T$, $D$ e dos bytes de um elemento; o número de ranks não importa.
#
# <details>
# <summary>Dica 1</summary>
#
# Conte os lugares: dois blocos (atenção e MLP), cada um com um all-reduce no forward e outro no backward. Pede-se o tamanho do tensor; o que um anel envia dele é outra pergunta.
#
# </details>

# %%
def payload(B, T, D, element):
    # BEGIN ANSWER
    return 4 * B * T * D * element
    # WRONG
    return 2 * B * T * D * element
    # END ANSWER


# %%
cases(payload, {(1, 1, 1, 1): 4, (2, 16, 64, 4): 32768, (1, 4096, 5120, 2): 167772160}, hint=1)

# %% [markdown] lang="en"
# ### 2. Which degrees?
#
# The function `degrees(H, K)` lists every number of ranks up to 64 that $H$ query heads and $K$ KV heads allow, copies of KV heads included. Sorted, please.
#
# <details>
# <summary>Hint 2</summary>
#
# A rank has whole query heads, so $N$ divides $H$. Key/value heads are either dealt out ($N$ divides $K$) or copied equally often ($K$ divides $N$). With 28 and 4, degrees 7 and 14 divide 28 and still fail.
#
# </details>

# %% [markdown] lang="es"
# ### 2. ¿Qué grados?
#
# La función `degrees(H, K)` da, en orden, todos los números de ranks hasta 64 que admiten $H$ cabezas de consulta y $K$ cabezas KV, incluidas las copias de cabezas KV.
#
# <details>
# <summary>Pista 2</summary>
#
# Un rank tiene cabezas de consulta enteras, así que $N$ divide a $H$. Las KV se reparten ($N$ divide a $K$) o se copian todas las mismas veces ($K$ divide a $N$). Con 28 y 4, los grados 7 y 14 dividen a 28 y aun así fallan.
#
# </details>

# %% [markdown] lang="pt"
# ### 2. Quais graus?
#
# A função `degrees(H, K)` devolve, em ordem, todos os números de ranks até 64 que $H$ cabeças de consulta e $K$ cabeças KV permitem, inclusive os que exigem cópias de cabeças KV.
#
# <details>
# <summary>Dica 2</summary>
#
# Um rank tem cabeças de consulta inteiras, então $N$ divide $H$. As KV são repartidas ($N$ divide $K$) ou copiadas todas o mesmo número de vezes ($K$ divide $N$). Com 28 e 4, os graus 7 e 14 dividem 28 e mesmo assim falham.
#
# </details>

# %%
def degrees(H, K):
    # BEGIN ANSWER
    return [N for N in range(1, 65) if H % N == 0 and (K % N == 0 or N % K == 0)]
    # WRONG
    return [N for N in range(1, 65) if H % N == 0]
    # END ANSWER


# %%
models = ((8, 8), (24, 4), (28, 4))
cases(degrees, {(H, K): sorted(n for found in predict.head_degrees(H, K) for n in found) for H, K in models}, hint=2)

# %% [markdown] lang="en"
# ### 3. Your own MLP
#
# Write the forward of a split MLP with biases. A rank gets the whole `x`, its rows of `up` with their bias, its columns of `down`, and the whole `down_bias`. You have `copy_to` and `reduce_from`. Output and gradient of `x` must equal the dense ones on both ranks.
#
# <details>
# <summary>Hint 3</summary>
#
# Three traps. A bias inside the sum is added once for each rank. Without `copy_to` each rank has only its share of the gradient of `x`. And `gelu` must come before the sum, never after it.
#
# </details>

# %% [markdown] lang="es"
# ### 3. Tu propio MLP
#
# Escribe el forward de un MLP dividido, con sesgos. Un rank recibe `x` entero, sus filas de `up` con su sesgo, sus columnas de `down` y `down_bias` entero. Tienes `copy_to` y `reduce_from`. La salida y el gradiente de `x` deben ser iguales a los densos en los dos ranks.
#
# <details>
# <summary>Pista 3</summary>
#
# Tres trampas. Un sesgo dentro de la suma se suma una vez por rank. Sin `copy_to`, cada rank tiene solo su parte del gradiente de `x`. Y `gelu` va antes de la suma, nunca después.
#
# </details>

# %% [markdown] lang="pt"
# ### 3. O seu próprio MLP
#
# Escreva o forward de um MLP dividido, com bias. Um rank recebe `x` inteiro, as suas linhas de `up` com o bias delas, as suas colunas de `down` e `down_bias` inteiro. Estão à sua disposição `copy_to` e `reduce_from`. A saída e o gradiente de `x` devem ser iguais aos densos nos dois ranks.
#
# <details>
# <summary>Dica 3</summary>
#
# Três armadilhas. Um bias dentro da soma é somado uma vez por rank. Sem `copy_to`, cada rank tem só a sua parte do gradiente de `x`. E `gelu` vem antes da soma, nunca depois.
#
# </details>

# %%
from torch.nn.functional import gelu, linear


def my_mlp(x, up, up_bias, down, down_bias, group):
    # BEGIN ANSWER
    hidden = gelu(linear(copy_to(x, group), up, up_bias))
    return reduce_from(linear(hidden, down), group) + down_bias
    # WRONG
    hidden = gelu(linear(copy_to(x, group), up, up_bias))
    return reduce_from(linear(hidden, down, down_bias), group)
    # END ANSWER


# %%
def try_it(mlp, x, up, up_bias, down, down_bias):
    group, r = dist.group.WORLD, dist.get_rank()
    x, up, up_bias, down, down_bias = (t.to(device()) for t in (x, up, up_bias, down, down_bias))
    mine = slice(8 * r, 8 * r + 8)
    x.requires_grad_()
    y = mlp(x, up[mine], up_bias[mine], down[:, mine], down_bias, group)
    if y is None:
        return ...
    (y**2).sum().backward()
    return y.detach().cpu(), x.grad.cpu()


def dense_mlp():
    leaf = parts[0].clone().requires_grad_()
    y = linear(gelu(linear(leaf, parts[1], parts[2])), parts[3], parts[4])
    (y**2).sum().backward()
    return y.detach(), leaf.grad


parts = [torch.randn(*s, dtype=torch.float64, generator=generator) for s in ((5, 4), (16, 4), (16,), (4, 16), (4,))]
check(lambda: two.run(try_it, my_mlp, *parts, timeout=20), [dense_mlp()] * N, hint=3, ranks=True, points=2)

# %% [markdown] lang="en"
# ### 4. A fused matrix
#
# Many checkpoints store gate and up as one matrix of $2F$ rows, gate first. Which of its rows does rank $r$ of $N$ need? The function `rows(F, N, r)` lists them in order.
#
# <details>
# <summary>Hint 4</summary>
#
# Hidden unit $j$ needs row $j$ of gate and row $j$ of up, which is row $F + j$ of the fused matrix. Cut through the middle, rank 0 would have all of gate and rank 1 all of up: the right shapes, the wrong numbers.
#
# </details>

# %% [markdown] lang="es"
# ### 4. Una matriz fusionada
#
# Muchos checkpoints guardan gate y up como una sola matriz de $2F$ filas, primero gate. ¿Qué filas necesita el rank $r$ de $N$? La función `rows(F, N, r)` las da en orden.
#
# <details>
# <summary>Pista 4</summary>
#
# La unidad oculta $j$ necesita la fila $j$ de gate y la fila $j$ de up, que es la fila $F + j$ de la matriz fusionada. Con un corte por la mitad, el rank 0 tendría todo gate y el rank 1 todo up: las formas correctas y los números equivocados.
#
# </details>

# %% [markdown] lang="pt"
# ### 4. Uma matriz fundida
#
# Muitos checkpoints guardam gate e up como uma única matriz de $2F$ linhas, gate primeiro. De quais linhas o rank $r$ de $N$ precisa? A função `rows(F, N, r)` devolve essas linhas em ordem.
#
# <details>
# <summary>Dica 4</summary>
#
# A unidade oculta $j$ precisa da linha $j$ de gate e da linha $j$ de up, que é a linha $F + j$ da matriz fundida. Com um corte pelo meio, o rank 0 teria a gate inteira e o rank 1, a up inteira: os formatos certos e os números errados.
#
# </details>

# %%
def rows(F, N, r):
    # BEGIN ANSWER
    half = list(range(r * F // N, (r + 1) * F // N))
    return half + [F + j for j in half]
    # WRONG
    return list(range(r * 2 * F // N, (r + 1) * 2 * F // N))
    # END ANSWER


# %%
cases(rows, {(F, N, r): predict.fused_rows([F, F], N, r) for F, N in ((4, 2), (12, 4)) for r in range(N)}, hint=4)

# %% [markdown] lang="en"
# The ranks have done their work. Closing them frees two processes; without this cell they would end with the notebook.

# %% [markdown] lang="es"
# Los ranks terminaron su trabajo. Cerrarlos libera sus procesos; sin esta celda terminarían junto con el notebook.

# %% [markdown] lang="pt"
# Os ranks terminaram o seu trabalho. Fechá-los libera os processos; sem esta célula eles terminariam junto com o notebook.

# %%
one.close()
two.close()
