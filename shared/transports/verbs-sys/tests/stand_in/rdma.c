/* Stands in for libibverbs and libmlx5 in tests: one device, mlx5_7, that notes each call in the file KBTP_CALLS and answers
 * as a device would. Declarations are those of rdma-core's headers, so that a call with other arguments does not compile. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(const char *format, ...) {
	FILE *calls = fopen(getenv("KBTP_CALLS"), "a");
	va_list list;
	va_start(list, format);
	vfprintf(calls, format, list);
	va_end(list);
	fputc('\n', calls);
	fclose(calls);
}

/* What is there and must not be called. */
__attribute__((used)) void kbtp_never(void) {
	note("unexpected call");
	abort();
}

#ifdef VERBS
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct ibv_device devices[2] = {{.name = "other0"}, {.name = "mlx5_7"}};
static struct ibv_context context = {.device = &devices[1]};
static struct ibv_pd domain = {.context = &context};

struct ibv_device **ibv_get_device_list(int *count) {
	struct ibv_device **list = calloc(3, sizeof *list);
	list[0] = &devices[0];
	list[1] = &devices[1];
	*count = 2;
	return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
int ibv_close_device(struct ibv_context *of) {
	note("close %s", of->device->name);
	return 0;
}
struct ibv_pd *ibv_alloc_pd(struct ibv_context *of) {
	note("domain");
	return &domain;
}
int ibv_dealloc_pd(struct ibv_pd *one) {
	note("end domain");
	return one == &domain ? 0 : EINVAL;
}
#endif

#ifdef MLX5
static struct ibv_context context;

bool mlx5dv_is_supported(struct ibv_device *device) { return !strcmp(device->name, "mlx5_7"); }

struct ibv_context *mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attributes) {
	note("open %s flags %u", device->name, attributes->flags);
	if (getenv("KBTP_CLOSED")) {
		errno = EPERM;
		return NULL;
	}
	context.device = device;
	return &context;
}

static int answer(const void *in, size_t inlen, void *out, size_t outlen) {
	const unsigned char *request = in;
	unsigned char *reply = out;
	memset(reply, 0, outlen);
	/* Refused: a status in the answer, and an error of the system beside it. */
	if (request[1] == 0xee) {
		reply[0] = 5;
		errno = EREMOTEIO;
		return EREMOTEIO;
	}
	/* Not passed on at all. */
	if (request[1] == 0xff) {
		errno = ENOMEM;
		return ENOMEM;
	}
	reply[outlen - 1] = request[inlen - 1];
	return 0;
}

int mlx5dv_devx_general_cmd(struct ibv_context *of, const void *in, size_t inlen, void *out, size_t outlen) {
	note("command %02x of %zu to %zu, context %d", ((const unsigned char *)in)[1], inlen, outlen, of == &context);
	return answer(in, inlen, out, outlen);
}

struct mlx5dv_devx_obj { int number; };
static int made;

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *of, const void *in, size_t inlen, void *out, size_t outlen) {
	if (of != &context || answer(in, inlen, out, outlen))
		return NULL;
	struct mlx5dv_devx_obj *one = malloc(sizeof *one);
	one->number = ++made;
	note("create %d", one->number);
	return one;
}
int mlx5dv_devx_obj_query(struct mlx5dv_devx_obj *one, const void *in, size_t inlen, void *out, size_t outlen) {
	note("query %d", one->number);
	return answer(in, inlen, out, outlen);
}
int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *one, const void *in, size_t inlen, void *out, size_t outlen) {
	note("modify %d", one->number);
	return answer(in, inlen, out, outlen);
}
int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *one) {
	note("destroy %d", one->number);
	free(one);
	return 0;
}

static struct mlx5dv_devx_umem umem = {.umem_id = 77};
struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *of, void *addr, size_t size, uint32_t access) {
	note("register %zu access %u: %s", size, access, (const char *)addr);
	return of == &context ? &umem : NULL;
}
int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *one) {
	note("unregister %u", one->umem_id);
	return 0;
}

static _Alignas(4096) unsigned char page[4096];
static struct mlx5dv_devx_uar uar = {.reg_addr = page + 0x800, .base_addr = page, .page_id = 9};
struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *of, uint32_t flags) {
	note("page %u", flags);
	return of == &context ? &uar : NULL;
}
void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *one) {
	const unsigned char *rung = (const unsigned char *)one->base_addr + 0x800;
	int elsewhere = 0;
	for (int at = 0; at < 4096; at++)
		elsewhere += page[at] && (at < 0x800 || at >= 0x808);
	note("end page %02x..%02x, elsewhere %d", rung[0], rung[7], elsewhere);
}
int mlx5dv_devx_query_eqn(struct ibv_context *of, uint32_t vector, uint32_t *eqn) {
	*eqn = vector + 40;
	return of == &context ? 0 : EINVAL;
}

static int ends[2];
static struct mlx5dv_devx_event_channel channel;
static uint64_t wanted;
struct mlx5dv_devx_event_channel *mlx5dv_devx_create_event_channel(struct ibv_context *of,
								    enum mlx5dv_devx_create_event_channel_flags flags) {
	note("channel %d", flags);
	if (of != &context || pipe(ends))
		return NULL;
	channel.fd = ends[0];
	return &channel;
}
void mlx5dv_devx_destroy_event_channel(struct mlx5dv_devx_event_channel *one) {
	note("end channel");
	close(one->fd);
	close(ends[1]);
}
int mlx5dv_devx_subscribe_devx_event(struct mlx5dv_devx_event_channel *one, struct mlx5dv_devx_obj *obj, uint16_t events_sz,
				     uint16_t events_num[], uint64_t cookie) {
	note("subscribe %d: %u octets, %u .. %u, fd %d", obj->number, events_sz, events_num[0],
	     events_num[events_sz / sizeof *events_num - 1], one->fd == ends[0]);
	wanted = cookie;
	/* It happens at once. */
	return write(ends[1], &wanted, sizeof wanted) == sizeof wanted ? 0 : EIO;
}
ssize_t mlx5dv_devx_get_event(struct mlx5dv_devx_event_channel *one, struct mlx5dv_devx_async_event_hdr *event_data,
			      size_t event_resp_len) {
	return read(one->fd, event_data, event_resp_len);
}
int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t obj_type) {
	if (obj_type != MLX5DV_OBJ_PD || !obj->pd.in)
		return EINVAL;
	obj->pd.out->pdn = 0x123;
	return 0;
}
#endif
